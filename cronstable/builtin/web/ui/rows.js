// A list of any length of which only the rows in sight exist. Rows have one height; the page itself scrolls.

const BEYOND = 8; // rows above and below what is seen

export class Rows {
  #body;
  #height;
  #make;
  #update;
  #items = [];
  #shown = new Map(); // key to { element, item }
  #due = false;

  /** `body`: the element for the rows. `height()`: px of a row now. `make(item)`: its element; `update(element, item, index)`. */
  constructor(body, { height, make, update }) {
    this.#body = body;
    this.#height = height;
    this.#make = make;
    this.#update = update;
    this.draw = this.draw.bind(this);
    for (const event of ["scroll", "resize"]) window.addEventListener(event, () => this.soon(), { passive: true });
  }

  /** The items in sight and a few around them. */
  get shown() {
    return [...this.#shown.values()].map(({ item }) => item);
  }

  /** Show `items`, each with a `key`. */
  set items(items) {
    this.#items = items;
    this.draw();
  }

  /** Draw with the next frame. */
  soon() {
    if (this.#due) return;
    this.#due = true;
    requestAnimationFrame(() => { this.#due = false; this.draw(); });
  }

  draw() {
    if (!this.#body.isConnected) return;
    const height = this.#height();
    const top = -this.#body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(top / height) - BEYOND);
    const last = Math.min(this.#items.length, Math.ceil((top + window.innerHeight) / height) + BEYOND);
    this.#body.style.height = `${this.#items.length * height}px`;
    const wanted = new Map();
    for (let index = first; index < last; index += 1) wanted.set(this.#items[index].key, index);
    for (const [key, row] of this.#shown) {
      // The row that has the focus stays, so that the keyboard does not lose its place.
      if (!wanted.has(key) && !row.element.contains(document.activeElement)) {
        row.element.remove();
        this.#shown.delete(key);
      }
    }
    let before = null;
    for (const [key, index] of wanted) {
      const row = this.#row(key, this.#items[index]);
      row.element.style.transform = `translateY(${index * height}px)`;
      this.#update(row.element, row.item, index);
      const next = before === null ? this.#body.firstChild : before.nextSibling;
      if (row.element !== next) this.#body.insertBefore(row.element, next);
      before = row.element;
    }
  }

  #row(key, item) {
    const row = this.#shown.get(key) ?? { element: this.#make(item) };
    row.item = item;
    this.#shown.set(key, row);
    return row;
  }

  /** Bring the item at `index` into sight and give the focus to `selector` in it. */
  focus(index, selector) {
    const item = this.#items[index];
    if (!item) return;
    const top = this.#body.getBoundingClientRect().top + window.scrollY + index * this.#height();
    const room = 150; // what stands fixed at the top, and the edge at the bottom
    if (top < window.scrollY + room) window.scrollTo({ top: Math.max(0, top - room) });
    else if (top + this.#height() > window.scrollY + window.innerHeight) {
      window.scrollTo({ top: top + 2 * this.#height() - window.innerHeight });
    }
    this.draw();
    this.#shown.get(item.key)?.element.querySelector(selector)?.focus({ preventScroll: true });
  }
}
