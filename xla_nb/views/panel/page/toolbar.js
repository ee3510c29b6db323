// Several of a kind as one tab stop: the arrow keys move among them.

const shown = (nodes) => nodes.filter((node) => !node.hidden);

/** Leaves one of the nodes that are shown to the Tab key: the one with the focus, or the first. */
function oneStop(nodes) {
	const seen = shown(nodes);
	const stop = seen.find((node) => node === document.activeElement) ?? seen[0];
	for (const node of nodes) mark(node, "tabindex", node === stop ? 0 : -1);
}

/** Moves the focus at these keys to the last or the next one that is shown. */
const walk = (nodes, back, on) => (event) => {
	const by = { [back]: -1, [on]: 1 }[event.key];
	if (!by) return;
	event.preventDefault();
	const seen = shown(nodes());
	seen[seen.indexOf(document.activeElement) + by]?.focus();
};

/** Buttons in a row. */
function toolbar(label, ...buttons) {
	const keydown = walk(() => buttons, "ArrowLeft", "ArrowRight");
	oneStop(buttons);
	return h("span.choices", { role: "toolbar", label, keydown, focusin: () => oneStop(buttons) }, ...buttons);
}
