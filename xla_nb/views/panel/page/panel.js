// The live panel of a run: all ranks, their output, Stop and Stacks. Each module of this folder uses
// only those that `script.py` names before it; the browser gets them all as one script. The page goes
// by ids, never by words of the kernel.

/** Shows the end where the saved snapshot is, for pages that were reloaded: only those have it still. */
const stay = (model) =>
	document.querySelectorAll(`.xn-saved-${CSS.escape(model.get("run"))}`).forEach((node) => (node.innerHTML = model.get("end")));

// anywidget calls this once per model, so that its views share a store.
export default () => {
	let store;
	return {
		initialize({ model }) {
			store = new Store(model);
			return () => store.close();
		},
		render({ model, el }) {
			if (typeof model.get("end") === "string") return stay(model);
			store ??= new Store(model);
			const view = new View(store, el);
			// Elsewhere the cell's output is replaced by then, and this view with it.
			const end = () => setTimeout(() => view.root.isConnected && (view.close(), stay(model)), 1000);
			model.on("change:end", end);
			return () => (model.off("change:end", end), view.close());
		},
	};
};
