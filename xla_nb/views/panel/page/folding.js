// Sections that fold, and whether they are folded: the page remembers it for all panels, where it may.

const STORED = "xla_nb.folded";
const folded = () => {
	try {
		return new Set(JSON.parse(localStorage.getItem(STORED) ?? "[]"));
	} catch {
		return new Set();
	}
};

/** Puts a title that folds a section into its head. One with `opened`, which is told whether it is
 * open, is folded at first. */
function folding(node, name, words, into, opened) {
	const set = (closed) => {
		node.classList.toggle("xn-folded", closed);
		mark(toggle, "aria-expanded", !closed);
		opened?.(!closed);
	};
	const flip = () => {
		const names = folded();
		const closed = !node.classList.contains("xn-folded");
		names[closed === !opened ? "add" : "delete"](name);
		set(closed);
		try {
			localStorage.setItem(STORED, JSON.stringify([...names]));
		} catch {
			// Not remembered, then.
		}
	};
	const toggle = button(words, flip, {}, "fold");
	into.prepend(h("h4.h", {}, toggle));
	set(folded().has(name) === !opened);
	return node;
}
