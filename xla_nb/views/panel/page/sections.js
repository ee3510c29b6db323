// Sections that the kernel draws: errors, where ranks are, cells of live ranks, their variables.

/** A part that the kernel draws, in a section of its own. */
class Drawn {
	constructor(view, name, node, body = node) {
		Object.assign(this, { view, name, node, body });
	}

	draw() {
		const html = this.view.store.parts[this.name];
		show(this.node, html);
		place(this.body, html, this.view);
	}
}

/** What went wrong, and notes. */
const errors = (view) => new Drawn(view, "errors", section("errors", "Errors and notes"));

/** The cells that live ranks have run. */
function cells(view) {
	const [head, body] = [div("bar-head"), div("scroll")];
	return new Drawn(view, "cells", folding(section("ran", "Cells", head, body), "cells", "Cells", head), body);
}

/** Where each rank is, asked for by a button. */
class Stacks {
	constructor(view) {
		const { store } = view;
		this.view = view;
		this.words = div("quiet");
		this.groups = div("groups");
		const again = link("Ask again", () => store.askStacks());
		const close = link("Close stacks", () => store.setStacks("closed"));
		const head = div("bar-head", h("h4.h", {}, "Where each rank is"), again, close);
		this.node = section("stacks", "Stacks", head, this.words, this.groups);
	}

	draw() {
		const { state, html, at } = this.view.store.stacks;
		const words = {
			asking: "Asking the ranks…",
			silent: "No answer yet. Each row tells where its rank was last seen.",
			answered: html ? `As of ${at}.` : "No rank answered.",
		};
		show(this.node, state !== "closed");
		mark(this.node, "data-state", state);
		put(this.words, words[state] ?? "");
		place(this.groups, html, this.view);
	}
}

/** The variables of live ranks, and whether the ranks agree, as it was when they were asked for. */
class Variables {
	constructor(view) {
		this.view = view;
		this.words = span("quiet");
		this.body = div("scroll");
		const ask = (wanted) => {
			this.wanted = wanted;
			view.changed("variables");
		};
		const head = div("bar-head", this.words, button("Refresh", () => ask(true)));
		this.node = folding(section("variables", "Variables", head, this.body), "variables", "Variables", head, ask);
	}

	draw() {
		const { store } = this.view;
		const shown = store.about.live && !store.over && store.frozen === null;
		show(this.node, shown);
		if (shown && this.wanted) {
			this.wanted = false;
			store.askVariables();
		}
		put(this.words, store.variables.words);
		place(this.body, store.variables.html, this.view);
	}
}
