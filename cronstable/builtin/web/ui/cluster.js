// The view of the cluster as this node believes it to be.

import { h, icon } from "./dom.js";
import { ago, now, span, time, when } from "./format.js";

const PEERS = {
  self: ["ok", "good", "this node"], agreed: ["ok", "good", "agrees"], syncing: ["waiting", "run", "is coming into step"], drifted: ["warn", "warn", "has another job set"],
  conflict: ["warn", "bad", "conflicts"], unreachable: ["failed", "bad", "cannot be reached"], untrusted: ["failed", "bad", "cannot be trusted"], unknown: ["unknown", "dim", "not heard of yet"],
};
const LEASE = { holder: "Holder", fence: "Fence", expiry: "Expires", identity: "This node is", leaseId: "Lease", path: "Path", electionName: "Election" };

/** What a node is, in one line for the top of the page: words, tone and sign. */
export function roleOf(cluster) {
  if (!cluster) return { words: "", tone: "dim", sign: "waiting" };
  if (!cluster.enabled) return { words: "single node", tone: "dim", sign: "ok" };
  if (cluster.error) return { words: "no cluster backend", tone: "bad", sign: "failed" };
  if (cluster.conflict) return { words: "conflict", tone: "bad", sign: "warn" };
  if (!cluster.elect_leader) return { words: "no election", tone: "dim", sign: "ok" };
  if (!cluster.quorate) return { words: "no quorum", tone: "bad", sign: "warn" };
  if (cluster.distribution === "spread") return { words: "jobs are spread", tone: "good", sign: "ok" };
  if (cluster.is_leader) return { words: "this node leads", tone: "good", sign: "star" };
  return cluster.leader ? { words: `${cluster.leader} leads`, tone: "run", sign: "star" } : { words: "nobody leads", tone: "bad", sign: "warn" };
}

export class ClusterView {
  title = "Cluster";
  #model;

  constructor(model) {
    this.#model = model;
  }

  open() {
    this.view = h("section", { "aria-label": "Cluster", class: "cards" });
    this.refresh("cluster");
    return this.view;
  }

  refresh(what) {
    if (!this.view || !["cluster", "moved", "handover", "who", "zone"].includes(what)) return;
    const { cluster, moves, handover, reasons } = this.#model;
    if (!cluster) return;
    const facts = JSON.stringify([cluster, moves[0], handover[0], reasons === null]);
    if (facts === this.facts && what !== "zone" && this.view.children.length) return;
    this.facts = facts;
    exchange(this.view, (cluster.enabled ? this.#cards(cluster) : [this.#alone()]).filter(Boolean));
  }

  /** Once a second: what counts down or grows old. */
  tick() {
    for (const element of this.view?.querySelectorAll("[data-at]") ?? []) {
      const at = Number(element.dataset.at);
      element.textContent = element.dataset.way === "left" ? (at > now() ? `in ${span((at - now()) / 1000)}` : `${ago(at)}: over`) : ago(at);
    }
  }

  #alone() {
    return h("div", { class: "card wide" }, h("h2", {}, "This node runs alone"), h("p", {}, "Its configuration has no cluster section, so it runs all its jobs itself."), h("p", { class: "dim" }, "With a cluster section several nodes agree on who runs each occurrence."));
  }

  #cards(cluster) {
    const { words, tone, sign } = roleOf(cluster);
    if (cluster.error) return [h("div", { class: "card wide bad" }, h("h2", {}, icon("failed"), "The cluster backend does not work"), h("p", {}, cluster.error), h("p", { class: "dim" }, "Until it does, Leader jobs do not run on this node; PreferLeader and EveryNode jobs do."))];
    const names = [
      ["This node", cluster.node_name], ["Leader", cluster.distribution === "spread" ? "each job has its owner" : (cluster.leader ?? "none")], ["Backend", cluster.backend],
      ["Distribution", cluster.distribution], ["Election", cluster.elect_leader ? "on" : "off"],
    ];
    return [
      h("div", { class: `card ${tone}` }, h("h2", {}, "Role"), h("p", { class: "big" }, icon(sign), words), list(names)),
      this.#quorum(cluster),
      cluster.lease ? this.#lease(cluster.lease) : null,
      cluster.claims ? this.#claims(cluster.claims) : null,
      this.#history(),
      cluster.lease ? null : this.#peers(cluster.peers),
    ];
  }

  #quorum(cluster) {
    const good = cluster.peers.filter((peer) => peer.status === "agreed" || peer.status === "self").length;
    const rows = cluster.lease
      ? [["Store", cluster.quorate ? "answers" : "no fresh contact"]]
      : [["Nodes", String(cluster.cluster_size)], ["Needed", String(cluster.quorum)], ["In agreement", String(good + (cluster.peers.some((peer) => peer.status === "self") ? 0 : 1))]];
    return h("div", { class: `card ${cluster.quorate ? "good" : "bad"}` }, h("h2", {}, "Quorum"), h("p", { class: "big" }, icon(cluster.quorate ? "ok" : "warn"), cluster.quorate ? "quorate" : "not quorate"), list([...rows, ["Job set", h("code", { title: cluster.job_set_id }, short(cluster.job_set_id))]]));
  }

  #lease(lease) {
    const rows = Object.entries(lease).filter(([, value]) => value !== null).map(([name, value]) => [LEASE[name] ?? name, name === "expiry" ? [until(value), h("div", { class: "dim" }, time(value))] : shown(value)]);
    return h("div", { class: "card" }, h("h2", {}, "Lease"), h("p", { class: "big" }, lease.holder ?? "not held"), list(rows));
  }

  /** What this node wrote to the claim log since its start. */
  #claims(claims) {
    const rows = [["Won", String(claims.won)], ["Not won", String(claims.other)], ["Started late", String(claims.catch_ups)]];
    return h("div", { class: "card" }, h("h2", {}, "Claims of this node"), list(rows), h("p", { class: "dim" }, "Each occurrence is claimed before it starts, so that no two nodes start it."));
  }

  #history() {
    const { moves } = this.#model;
    const changes = moves.length ? h("ol", { class: "moves" }, moves.slice(0, 8).map((move) => h("li", {}, time(move.at, when(move.at).slice(11)), ` ${move.words}`))) : h("p", { class: "dim" }, "No change.");
    return h("div", { class: "card wide" }, h("h2", {}, "Since this page was opened"),
      h("div", { class: "beside" }, h("div", {}, h("h3", {}, "Leadership and quorum"), changes), h("div", {}, this.#handover())));
  }

  /** What the rules on claims made of occurrences around a change of leadership. */
  #handover() {
    const { handover, reasons } = this.#model;
    const row = ({ reason, job, due }) => h("li", {}, due ? time(due, when(due).slice(11)) : "", " ", h("b", {}, job), `: ${reason === "catch-up" ? "started late" : (reasons?.[reason] ?? reason)}`);
    return [h("h3", {}, "Handover"), handover.length ? h("ol", { class: "moves" }, handover.slice(0, 8).map(row)) : h("p", { class: "dim" }, "Nothing was started late or skipped around a handover.")];
  }

  #peers(peers) {
    const row = (peer) => {
      const [sign, tone, words] = PEERS[peer.status] ?? ["unknown", "dim", peer.status];
      return h("tr", {},
        h("th", { scope: "row" }, peer.node_name ?? "–", h("div", { class: "dim" }, peer.host)),
        h("td", {}, h("span", { class: `chip ${tone}` }, icon(sign), peer.status), h("div", { class: "dim" }, words)),
        h("td", {}, peer.last_seen ? h("span", { data: { at: Date.parse(peer.last_seen), way: "ago" } }, ago(peer.last_seen)) : "never"),
        h("td", {}, peer.job_set_id ? h("code", { title: peer.job_set_id }, short(peer.job_set_id)) : "–"),
        h("td", { class: peer.last_error ? "wrong" : "" }, peer.last_error ?? ""));
    };
    return h("div", { class: "card wide" }, h("h2", {}, "Peers"), peers.length
      ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Peers" }, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ["Node", "Status", "Seen", "Job set", "Last error"].map((words) => h("th", { scope: "col" }, words)))), h("tbody", {}, peers.map(row))))
      : h("p", { class: "dim" }, "None."));
  }
}

/** What stands in the banner when the nodes disagree. */
export function conflictWords(cluster) {
  const words = [];
  if (cluster.conflict_names?.length) words.push(`more than one node is called ${cluster.conflict_names.join(", ")}`);
  if (cluster.conflicting_sizes?.length) words.push(`other nodes count ${cluster.conflicting_sizes.join(", ")} members, this one ${cluster.cluster_size}`);
  if (cluster.conflicting_policies?.length) words.push(cluster.conflicting_policies.join(", "));
  return words.join("; ");
}

/** Put `cards` in the place of those in `view`; one that says the same stays, with what is selected or focused in it. */
function exchange(view, cards) {
  cards.forEach((card, index) => {
    const old = view.children[index];
    if (!old) view.append(card);
    else if (!old.isEqualNode(card)) {
      const held = old.contains(document.activeElement);
      old.replaceWith(card);
      if (held) card.querySelector("[tabindex]")?.focus({ preventScroll: true });
    }
  });
  while (view.children.length > cards.length) view.lastChild.remove();
}

function list(rows) {
  return h("dl", { class: "details" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function until(iso) {
  return h("span", { data: { at: Date.parse(iso), way: "left" } }, Date.parse(iso) > now() ? `in ${span((Date.parse(iso) - now()) / 1000)}` : "over");
}

function shown(value) {
  return value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
}

function short(id) {
  return id ? id.replace(/^(v\d+:)?(.{10}).*$/s, "$1$2…") : "–";
}
