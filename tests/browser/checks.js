// What a reader without eyes, without a mouse, or with weak eyes needs of a page; a list of what is wrong with this one.
() => {
  const wrong = [];
  const visible = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const called = (element) => `${element.tagName.toLowerCase()}${element.id ? `#${element.id}` : ""}${typeof element.className === "string" && element.className ? `.${element.className}` : ""} ${(element.textContent ?? "").trim().slice(0, 30)}`;
  const label = (element) => {
    const by = (element.getAttribute("aria-labelledby") ?? "").split(" ").filter(Boolean).map((id) => document.getElementById(id)?.textContent ?? "").join(" ");
    const labels = [...(element.labels ?? [])].map((one) => one.textContent).join(" ");
    return (by || element.getAttribute("aria-label") || labels || element.textContent || "").trim();
  };
  for (const element of document.querySelectorAll("button, a[href], input, select, [role=tab], [role=img], [role=table], [role=region], [role=tabpanel], dialog, nav, aside:not([hidden])")) {
    if (visible(element) && !label(element)) wrong.push(`no name: ${called(element)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  wrong.push(...ids.filter((id, index) => ids.indexOf(id) !== index).map((id) => `two elements are called ${id}`));
  for (const name of ["aria-controls", "aria-labelledby", "aria-describedby", "for"]) {
    for (const element of document.querySelectorAll(`[${name}]`)) if (!document.getElementById(element.getAttribute(name))) wrong.push(`${name} leads nowhere: ${called(element)}`);
  }
  const within = { row: "[role=table], [role=rowgroup]", cell: "[role=row]", columnheader: "[role=row]", rowheader: "[role=row]", tab: "[role=tablist]" };
  for (const [role, parent] of Object.entries(within)) {
    for (const element of document.querySelectorAll(`[role=${role}]`)) {
      if (!element.parentElement.closest(parent) && !element.closest(".lane.head")) wrong.push(`${role} outside of ${parent}: ${called(element)}`);
    }
  }
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].filter(visible).map((element) => Number(element.tagName[1]));
  if (levels.filter((level) => level === 1).length !== 1) wrong.push("not one h1");
  levels.forEach((level, index) => { if (index && level > levels[index - 1] + 1) wrong.push(`h${level} after h${levels[index - 1]}`); });
  if (!document.documentElement.lang) wrong.push("no language");
  if (!document.querySelector("main") || !document.querySelector("header") || !document.querySelector("nav")) wrong.push("a landmark is missing");
  for (const element of document.querySelectorAll("[tabindex]")) if (element.tabIndex > 0) wrong.push(`tabindex above 0: ${called(element)}`);
  for (const element of document.querySelectorAll("button, input, select")) {
    const box = element.getBoundingClientRect();
    const inline = element.classList.contains("name") || ["checkbox"].includes(element.type);
    if (visible(element) && box.width && !inline && (box.width < 24 || box.height < 24)) wrong.push(`too small to hit: ${called(element)}`);
  }

  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colour = (css) => { paint.clearRect(0, 0, 1, 1); paint.fillStyle = css; paint.fillRect(0, 0, 1, 1); const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255]; };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      const layer = colour(getComputedStyle(one).backgroundColor);
      layers.push(layer);
      if (layer[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const light = ([r, g, b]) => [r, g, b].map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)).reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const element = words.currentNode.parentElement;
    if (!words.currentNode.data.trim() || !visible(element) || element.closest(".unseen, [aria-disabled=true], .skip, noscript, .lost")) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const front = over(colour(style.color), back);
    const [high, low] = [light(front), light(back)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) wrong.push(`contrast ${ratio.toFixed(2)}: ${called(element)}`);
  }
  return [...new Set(wrong)];
}
