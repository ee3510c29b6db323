// Makes nodes of the page and changes them, only where something differs. Text is only ever set as text.

/** Makes nodes: `kind` is a tag with classes (`div.log`), `label` the accessible name. */
function h(kind, attributes, ...children) {
	const [tag, ...names] = kind.split(".");
	const node = document.createElement(tag);
	if (names.length) node.setAttribute("class", names.map((name) => `xn-${name}`).join(" "));
	for (const name in attributes) {
		const value = attributes[name];
		if (typeof value === "function") node.addEventListener(name, value);
		else if (value !== null) node.setAttribute(name === "label" ? "aria-label" : name, value);
	}
	node.append(...children);
	return node;
}

const div = (names, ...children) => h(`div.${names}`, {}, ...children);
const span = (names, ...children) => h(`span.${names}`, {}, ...children);
const section = (name, label, ...children) => h(`section.${name}`, { label }, ...children);
const button = (text, click, attributes, name = "button") =>
	h(`button.${name}`, { type: "button", click, ...attributes }, text);
const search = (label, input) => h("input.filter", { type: "search", label, placeholder: label, spellcheck: "false", input });
const link = (text, click) => button(text, click, {}, "link");
const option = ([value, text]) => h("option", { value }, text);

// A rank's hue: eight far apart, then by the golden angle.
const HUES = [255, 45, 150, 325, 205, 80, 290, 15];
const hue = (rank) => (rank === null ? 0 : (HUES[rank] ?? Math.round(rank * 137.508) % 360));
const tint = (node, rank) => {
	node.style.setProperty("--xn-hue", hue(rank));
	return node;
};

/** Sets the text of a node, if it differs. */
function put(node, text) {
	if (node.xnText !== text) node.textContent = node.xnText = text;
}

function mark(node, name, value) {
	if (value === null) node.removeAttribute(name);
	else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Replaces the children of a node when `key` changes. */
function fill(node, key, children) {
	if (node.xnKey === key) return;
	node.xnKey = key;
	node.replaceChildren(...children());
}

function show(node, shown) {
	if (node.hidden === Boolean(shown)) node.hidden = !shown;
}

async function copy(text) {
	try {
		await navigator.clipboard.writeText(text);
	} catch {
		// No permission, or a page without https.
		const give = (event) => {
			event.clipboardData.setData("text/plain", text);
			event.preventDefault();
		};
		document.addEventListener("copy", give, { capture: true, once: true });
		document.execCommand("copy");
	}
}
