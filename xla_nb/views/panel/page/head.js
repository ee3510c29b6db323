// The head: the diagnosis, what the run is and how far it has come, with Stop and Stacks.

const QUIET = 0.5; // seconds in which a run is one line

class Head {
	constructor(view) {
		this.view = view;
		const { store } = view;
		this.sign = span("sign");
		this.sentence = span("headline");
		const toggle = () => (store.stacks.state === "closed" ? store.askStacks() : store.setStacks("closed"));
		this.stacks = button("Stacks", toggle, { "aria-expanded": false });
		this.stop = button("Stop", () => store.halt(), { "data-action": "stop" });
		this.about = div("sub");
		this.bar = div("runbar");
		this.say = div("say");
		this.live = h("div.live", { "aria-live": "polite" });
		const title = h("h3.title", {}, this.sign, " ", this.sentence);
		const actions = div("actions", this.stacks, this.stop);
		const line = div("line", this.about, this.bar);
		this.node = h("header.head", {}, title, actions, line, this.say, this.live);
	}

	get state() {
		const { about, over, stop, frozen } = this.view.store;
		if (frozen !== null) return "stopped";
		return over || stop === "no" ? about.state : "stopping";
	}

	/** Whether the run has only begun: most cells are over before there is more to see than a line. */
	get isNew() {
		const { about, over, now } = this.view.store;
		return !over && !about.live && (about.started === null || now - about.started < QUIET);
	}

	draw(now) {
		const { view, state } = this;
		const { about, over, parts, frozen, farewell, say, stacks } = view.store;
		if (this.isNew) this.later ??= setTimeout(() => ((this.later = null), view.changed("head")), 1000 * QUIET);
		const title = frozen === null ? about.title : farewell;
		mark(view.root, "data-state", state);
		mark(view.root, "data-level", frozen === null ? about.level : "calm");
		place(this.sign, parts.sign, view);
		place(this.sentence, frozen === null ? parts.title : farewell, view);
		const [ask, act] = about.live ? ["Shut down", "Shutting down…"] : ["Stop", "Stopping…"];
		put(this.stop, state === "stopping" ? act : ask);
		this.stop.disabled = over || frozen !== null || (about.live && state === "stopping");
		this.stacks.disabled = (over || frozen !== null) && stacks.state === "closed";
		mark(this.stacks, "aria-expanded", stacks.state !== "closed");
		place(this.about, parts.about, view);
		place(this.bar, frozen === null ? parts.bar : "", view);
		put(this.say, say || (title.includes(about.stopping) ? "" : about.stopping));
		this.speak(now, title);
	}

	/** Says the title to screen readers, at most every five seconds, and not for each of its numbers. */
	speak(now, title) {
		const { about, over } = this.view.store;
		const gist = title.replace(/\d[\d.,:]*/g, "0") + about.marked;
		const due = over || now - (this.spoken ?? -5000) >= 5000;
		if (!due || gist === this.gist) return;
		[this.spoken, this.gist] = [now, gist];
		put(this.live, title);
	}
}
