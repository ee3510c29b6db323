// The live panel of a run: all ranks, their output, Stop and Stacks. Each module of this folder uses
// only those that `script.py` names before it; the browser gets them all as one script. The page goes
// by ids, never by words of the kernel.

import { Store } from "./store.js";
import { View } from "./view.js";

// anywidget calls this once per model, so that its views share a store.
export default () => {
	let store;
	return {
		initialize({ model }) {
			store = new Store(model);
			return () => store.close();
		},
		render({ model, el }) {
			if (model.get("over")) return; // a reloaded page has it from the kernel
			store ??= new Store(model);
			const view = new View(store, el);
			return () => view.close();
		},
	};
};
