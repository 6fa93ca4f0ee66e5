// The view of the fleet: jobs by nodes, as each node told the others.

import { h, icon, put, text } from "./dom.js";
import { ago, inUtc, span, took, when } from "./format.js";
import { OUTCOMES, STATES } from "./model.js";
import { Rows } from "./rows.js";

const EVERY = 5; // seconds between two looks

export class FleetView {
  title = "Fleet";
  #api;
  #model;
  #acts;
  #fleet = null;
  #count = 0;

  constructor(model, api, acts) {
    this.#model = model;
    this.#api = api;
    this.#acts = acts;
  }

  open() {
    this.view = h("section", { "aria-label": "Fleet" });
    this.#fleet = null;
    this.#count = 0;
    put(this.view, h("p", { class: "empty" }, "Looking…"));
    this.#look();
    return this.view;
  }

  /** What the model says of the cluster and of who owns a job is part of what is shown here. */
  refresh(what) {
    if (!this.#fleet || !this.view?.isConnected) return;
    if (!this.#fleet.enabled) text(this.leads, this.#leads());
    else if (what === "cluster") this.#heads();
    else if (what === "jobs" || what === "set" || what === "zone") this.rows.draw();
  }

  tick() {
    this.#count += 1;
    if (this.#count % EVERY === 0) this.#look();
  }

  async #look() {
    let fleet;
    try {
      fleet = await this.#api.get("fleet");
    } catch {
      return; // the page says by itself that there is no contact
    }
    if (fleet === this.#fleet || !this.view?.isConnected) return;
    const shape = (one) => one && JSON.stringify([one.enabled, one.nodes.map((node) => node.host)]);
    const same = shape(fleet) === shape(this.#fleet);
    this.#fleet = fleet;
    if (!same) put(this.view, fleet.enabled ? this.#matrix() : this.#none());
    if (fleet.enabled) this.#arrange();
  }

  #none() {
    this.leads = h("p", { class: "dim", role: "status" }, this.#leads());
    return h("div", { class: "card wide" }, h("h2", {}, "The nodes do not tell each other what they run"),
      h("p", {}, "Between nodes that share a lease there is no channel for it. Open the page of each node, or set cluster.observability."),
      this.leads);
  }

  #leads() {
    const { cluster } = this.#model;
    if (cluster === null) return "Looking…";
    return cluster.enabled ? `Leader: ${cluster.leader ?? "none"}` : "This node runs alone.";
  }

  #matrix() {
    const { nodes } = this.#fleet;
    this.head = h("div", { role: "row", class: "row head" }, h("div", { role: "columnheader", class: "c-name" }, "Job"), nodes.map(() => h("div", { role: "columnheader" })));
    this.body = h("div", { role: "rowgroup", class: "rows" });
    this.rows = new Rows(this.body, { height: () => 40, make: (item) => this.#make(item.key), update: (element, item) => this.#update(element, item.key) });
    const table = h("div", { role: "table", class: "table fleet", "aria-label": "Jobs by nodes" }, h("div", { role: "rowgroup", class: "thead" }, this.head), this.body);
    table.style.setProperty("--nodes", nodes.length);
    requestAnimationFrame(() => this.#arrange());
    return h("div", { class: "sideways", tabindex: "0", role: "region", "aria-label": "Jobs by nodes" }, table);
  }

  #arrange() {
    if (!this.body?.isConnected) return;
    this.#heads();
    const names = new Set(this.#fleet.nodes.flatMap((node) => Object.keys(node.jobs ?? {})));
    this.rows.items = [...names].sort((a, b) => a.localeCompare(b, "en", { numeric: true })).map((name) => ({ key: name }));
  }

  #heads() {
    this.#fleet.nodes.forEach((node, index) => {
      const leads = node.node_name && node.node_name === this.#model.cluster?.leader;
      put(this.head.children[index + 1], h("b", {}, node.node_name ?? node.host, leads ? [" ", icon("star"), h("span", { class: "unseen" }, "leads")] : null), h("div", { class: node.status === "agreed" || node.self ? "dim" : "wrong" }, node.self ? "this node" : `${node.status}, ${node.as_of ? ago(node.as_of) : "never heard of"}`, node.truncated ? ", 512 jobs at most" : ""));
    });
  }

  #make(name) {
    return h("div", { role: "row", class: "row", data: { job: name } },
      h("div", { role: "rowheader", class: "c-name" }, h("button", { type: "button", class: "name", on: { click: () => this.#acts.open(name, "log") } }, name)),
      this.#fleet.nodes.map(() => h("div", { role: "cell" })));
  }

  #update(element, name) {
    const owner = this.#model.jobs.get(name)?.clusterOwner;
    this.#fleet.nodes.forEach((node, index) => {
      const cell = element.children[index + 1];
      const said = node.jobs?.[name];
      const state = !said ? null : said.running ? "running" : said.enabled === false ? "off" : said.last ? (OUTCOMES[said.last.outcome] ?? "unknown") : "pending";
      const words = state === null ? "" : `${STATES[state].words}${said.last && !said.running ? ` ${ago(said.last.finished_at)}` : ""}`;
      const key = `${state} ${words} ${owner === node.node_name} ${inUtc()}`;
      if (cell.dataset.key === key) return;
      cell.dataset.key = key;
      cell.className = state && !node.self && node.status !== "agreed" ? "old" : "";
      cell.title = said?.last ? `${when(said.last.finished_at)}, ${took(said.last.duration)}${typeof said.scheduled_in === "number" ? `\nnext in ${span(said.scheduled_in)}` : ""}` : "";
      put(cell, state === null ? h("span", { class: "dim" }, node.jobs === null ? "?" : "–") : [h("span", { class: `chip ${STATES[state].tone}` }, icon(STATES[state].sign), h("span", { class: "unseen" }, STATES[state].words)), h("span", { class: "age" }, said.last && !said.running ? ago(said.last.finished_at) : STATES[state].words), owner && owner === node.node_name ? h("span", { class: "tag" }, "owner") : null]);
    });
  }
}
