// The head: the diagnosis, what the run is and how far it has come, with Stop and Stacks.

import { duration, plural } from "./words.js";
import { button, div, fill, glyph, h, mark, put, show, span } from "./nodes.js";
import { meter } from "./gauges.js";
import { placed } from "./places.js";
import { group } from "./stacks.js";

export class Head {
	every = 100;

	constructor(view) {
		this.view = view;
		const { store } = view;
		this.sentence = span("headline");
		this.title = h("h3.title", {}, glyph(), this.sentence);
		const toggle = () => (this.stacksOpen ? store.setStacks("closed") : store.askStacks());
		this.stacks = button("Stacks", toggle, { "aria-expanded": false });
		this.stop = button("Stop", () => store.halt(), { "data-action": "stop" });
		this.cell = span("cell");
		this.ranks = span("machine");
		this.host = span("machine");
		this.elapsed = span("elapsed");
		this.bar = meter("runbar");
		this.say = div("say");
		this.hang = div("hang");
		this.notices = h("ul.notices", { label: "Notices" });
		this.live = h("div.live", { "aria-live": "polite" });
		const sub = div("sub", this.cell, this.ranks, this.host, this.elapsed, ...this.bar.words);
		const actions = div("actions", this.stacks, this.stop);
		this.node = h("header.head", {}, this.title, actions, sub, this.bar.node, this.say, this.hang, this.notices, this.live);
	}

	get stacksOpen() {
		const { state, of } = this.view.store.stacks;
		return state !== "closed" && of === null;
	}

	get state() {
		const { about, over, stop, cards, frozen } = this.view.store;
		if (frozen !== null) return "stopped";
		if (over) return about.ok === false ? "failed" : "ok";
		if (!["no", "armed"].includes(stop) || about.stopping) return "stopping";
		if (about.live?.idle) return "idle";
		return [...cards.values()].some(({ phase }) => phase !== "starting") ? "running" : "starting";
	}

	draw(now) {
		const { store, root } = this.view;
		const { about, over, hang } = store;
		const { state } = this;
		const { sentence, level } = about.diagnosis ?? { sentence: about.headline, level: state === "failed" ? "bad" : "calm" };
		mark(root, "data-state", state);
		mark(root, "data-level", level);
		mark(this.title, "data-phase", { ok: "finished", stopping: "waiting" }[state] ?? state);
		put(this.sentence, sentence);
		const [ask, act] = about.live ? ["Shut down", "Shutting down…"] : ["Stop", "Stopping…"];
		put(this.stop, state === "stopping" ? act : ask);
		this.stop.disabled = over || (about.live && state === "stopping");
		this.stacks.disabled = over && !this.stacksOpen;
		mark(this.stacks, "aria-expanded", this.stacksOpen);
		this.describe();
		this.bar.set(store.bar);
		put(this.say, store.say || (sentence.includes(about.stopping) ? "" : about.stopping));
		show(this.hang, hang);
		const where = () => h("details", {}, h("summary", {}, "Where each rank was"), ...hang.groups.map((one) => group(one, this.view)));
		// Until the run is over its diagnosis is the verdict.
		fill(this.hang, over + JSON.stringify(hang), () => (hang ? [over ? hang.verdict : "", where()] : []));
		fill(this.notices, about.notices.join("\n"), () => about.notices.map((text) => h("li.notice", {}, text)));
		this.speak(now, sentence);
	}

	/** Says the diagnosis to screen readers, at most every five seconds, and not for each of its numbers. */
	speak(now, sentence) {
		const { about, over } = this.view.store;
		const { diagnosis } = about;
		const gist = diagnosis ? sentence.replace(/\d[\d.,:]*/g, "0") + diagnosis.ranks : sentence;
		const due = over || now - (this.spoken ?? -5000) >= 5000;
		if (!due || gist === this.gist) return;
		[this.spoken, this.gist] = [now, gist];
		put(this.live, sentence);
	}

	/** The small print: cell, machine, time. */
	describe() {
		const { store } = this.view;
		const { about, over, elapsed, bar } = store;
		fill(this.cell, about.cell, () => [placed(about.cell, this.view)]);
		const ranks = Math.max(about.ranks, store.cards.size);
		const total = ranks ? plural(ranks, about.unit) : "";
		put(this.ranks, total && about.simulated ? `${total} of a simulated TPU host` : total);
		put(this.host, about.host);
		mark(this.host, "data-phase", about.lost.size ? "died" : null);
		const time = duration(elapsed);
		put(this.elapsed, about.live && !over ? `${about.live.idle ? "idle" : "running"} for ${time}` : time);
		for (const words of this.bar.words) show(words, bar);
	}
}
