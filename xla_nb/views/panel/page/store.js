// What the page knows of a run: one store per model, bounded. Messages only change the store, and say
// to its views which of their parts changed; requests to the kernel start here.

import { amount, held, isObject, isRank, list, number, objects } from "./values.js";
import { OVER, ranksOf, timeOfDay } from "./words.js";
import { readAbout, readBar, readCard, readGroup, readHang, readRan, readTrouble, readVariables } from "./messages.js";
import { Lines } from "./lines.js";

const PATIENCE = 800; // ms for the kernel to answer a request
const POINTS = 2000; // of one line of a figure
const WINDOW = 60; // seconds of a lane
const RAN = 50; // cells of live ranks
const ARMED = 10_000; // ms in which a second click ends them
const PAGE = Math.random().toString(36).slice(2); // another one after a reload

export class Store {
	about = readAbout({});
	bar = null;
	hang = null;
	cards = new Map();
	troubles = [];
	figures = new Map();
	lanes = new Map(); // by rank: the numbers of KINDS by second
	memory = new Map(); // by rank: a line of MiB
	lines = new Lines();
	stacks = { state: "closed", groups: [], of: null };
	ran = new Map(); // cells of live ranks, by number
	variables = readVariables({}); // of live ranks
	stop = "no"; // no, armed, asked, acknowledged, interrupted
	say = "";
	seq = null;
	offset = 0; // the kernel's clock minus the page's, in seconds
	told = 0; // up to when the kernel has counted the seconds of its sentences
	views = new Set();
	requests = new Map();
	asked = 0;
	updated = new Date();
	frozen = null; // the kernel's time when the page lost it

	constructor(model) {
		this.model = model;
		this.run = String(model.get("run") ?? "");
		this.receive = (message) => this.take(message);
		this.lost = () => this.freeze();
		model.on("msg:custom", this.receive);
		model.on("comm_live_update", this.lost);
		this.listen();
		this.askWhole();
	}

	close() {
		this.model.off("msg:custom", this.receive);
		this.model.off("comm_live_update", this.lost);
		this.kernel?.iopubMessage?.disconnect(this.hear, this);
		this.kernel?.disposed?.disconnect(this.part, this);
		for (const { timer } of this.requests.values()) clearTimeout(timer);
		clearTimeout(this.later);
	}

	get over() {
		return this.about.ended !== null || this.about.ok !== null;
	}

	get now() {
		return this.frozen ?? Date.now() / 1000 + this.offset;
	}

	/** For how long a rank has done what it does: up to when the headline counts, while it does. */
	lasting(since) {
		return (this.now - this.told < 1.5 ? this.told : this.now) - since;
	}

	get elapsed() {
		const { started, ended, elapsed, live } = this.about;
		if (live && !this.over) return this.now - (live.since ?? this.now);
		if (started === null || (this.over && elapsed !== null)) return elapsed ?? 0;
		return (ended ?? this.now) - started;
	}

	changed(...parts) {
		for (const view of this.views) view.changed(...parts);
	}

	/** Listens to the kernel's connection too: a widget manager that fails tells of no restart. */
	listen() {
		try {
			this.kernel = this.model.widget_manager.kernel;
			this.kernel.iopubMessage.connect(this.hear, this);
			this.kernel.disposed.connect(this.part, this);
		} catch {
			// Some front ends do not give widgets the kernel.
		}
	}

	/** Only another kernel says in another session what it does, or the server that it restarts one. */
	hear(_, { header }) {
		if (header.msg_type !== "status") return;
		if ((this.session ??= header.session) !== header.session) this.freeze();
		this.session = header.session;
	}

	part() {
		this.freeze("Kernel disconnected");
	}

	/** The kernel has gone: nothing more comes, and Stop would hit another cell. */
	freeze(what = "Kernel restarted") {
		if (this.over) return;
		this.frozen = this.now;
		const headline = `${what}; last update ${timeOfDay(this.updated)}`;
		this.describe({ ...this.about, ...(this.about.live && { cell: "" }), ended: this.now, headline, diagnosis: null });
		for (const cell of this.ran.values()) if (cell.outcome === "running") Object.assign(cell, { outcome: "stopped", told: "stopped" });
		this.changed("cells");
		for (const card of this.cards.values()) if (!OVER.has(card.phase)) this.update([{ ...card, phase: "stopped" }]);
		this.speak(`Its ranks end with it. import xla_nb; xla_nb.open_run("${this.run}") shows what they had done.`);
	}

	// messages from the kernel

	take(message) {
		this.updated = new Date();
		if (this.frozen !== null) {
			this.frozen = null;
			this.say = "";
			this.askWhole();
		}
		const handler = `on_${message?.type}`;
		if (message?.run === this.run && handler in this) this[handler](message);
	}

	on_news(message) {
		if (!Number.isInteger(message.seq)) return;
		const all = Boolean(message.whole);
		if (all) {
			clearTimeout(this.later);
			this.later = undefined;
			message = { bar: null, hang: null, cards: [], troubles: [], figures: [], lanes: [], ran: [], ...message };
		} else if (message.seq !== this.seq + 1) this.askWhole();
		this.seq = message.seq;
		this.offset = (number(message.now) ?? this.now) - Date.now() / 1000;
		this.told = number(message.at) ?? this.told;
		if (isObject(message.about)) this.describe(readAbout(message.about));
		for (const [name, read] of [["bar", readBar], ["hang", readHang]]) {
			if (!(name in message)) continue;
			this[name] = isObject(message[name]) ? read(message[name]) : null;
			this.changed("head");
		}
		if (message.cards) this.update(objects(message.cards), all);
		if (message.troubles) {
			this.troubles = objects(message.troubles).map(readTrouble);
			this.changed("troubles");
		}
		if (message.figures) this.plot(objects(message.figures), all);
		if (message.lanes) this.lay(objects(message.lanes), all);
		if (message.ran) this.remember(objects(message.ran), all);
		this.begun ||= message.seq === 1;
		if (!this.begun && list(message.pages).includes(PAGE)) {
			// It has had a part of these lines, or none.
			this.lines.byRank.clear();
			this.lines.received.clear();
			for (const view of this.views) view.parts.output.refresh();
			this.print(objects(message.before));
		}
		if (message.lines) this.print(objects(message.lines));
	}

	describe(about) {
		this.about = about;
		if (this.over && this.stop !== "no") {
			this.stop = "no";
			this.say = "";
		}
		this.lines.ranks = Math.max(this.lines.ranks, about.ranks);
		this.changed("head", "output", "variables");
	}

	update(cards, all) {
		if (all) this.cards = new Map();
		for (const card of cards) {
			if (!isRank(card.rank)) continue;
			const read = readCard(card);
			this.cards.set(card.rank, read);
			if (read.memory !== null) this.weigh(read);
		}
		this.lines.ranks = Math.max(this.lines.ranks, this.cards.size);
		this.changed("head", "ranks");
	}

	plot(figures, all) {
		if (all) this.figures = new Map();
		for (const { name, ...own } of figures) {
			if (typeof name !== "string" || !isRank(own.rank) || !Array.isArray(own.points)) continue;
			this.trace(held(this.figures, name, () => new Map()), own);
		}
		this.changed("figures", "ranks");
	}

	/** Notes the memory of a rank, at most once a second. */
	weigh({ rank, memory }) {
		const at = this.now - (this.about.started ?? this.now);
		const { x, y, t } = held(this.memory, rank, () => ({ x: [], y: [], t: [] }));
		if (x.length && at - x.at(-1) < 1) return;
		x.push(at);
		y.push(memory / 2 ** 20);
		t.push(at);
		this.changed("figures");
		if (x.length > 400) for (const one of [x, y, t]) one.splice(0, one.length, ...one.filter((_, i) => i % 2 === 0));
	}

	/** Keeps what the last seconds of ranks went into. */
	lay(lanes, all) {
		if (all) this.lanes = new Map();
		for (const { rank, slots } of lanes) {
			if (!isRank(rank)) continue;
			const lane = held(this.lanes, rank, () => new Map());
			for (const [second, ...parts] of list(slots).map(list)) {
				if (Number.isInteger(second)) lane.set(second, parts.slice(0, 5).map(amount));
			}
			const newest = Math.max(...lane.keys());
			for (const second of lane.keys()) if (second <= newest - WINDOW) lane.delete(second);
		}
		this.changed("ranks");
	}

	/** Keeps the newest cells of live ranks. */
	remember(cells, all) {
		if (all) this.ran = new Map();
		for (const cell of cells.map(readRan)) this.ran.set(cell.number, cell);
		const newest = Math.max(...this.ran.keys());
		for (const number of this.ran.keys()) if (number <= newest - RAN) this.ran.delete(number);
		this.changed("cells");
	}

	on_variables(message) {
		this.variables = readVariables(message);
		this.changed("variables");
	}

	/** The last seconds that lanes show: from, to, and how many of them it has lasted. */
	get window() {
		const to = this.about.ended ?? this.now;
		const lasted = this.about.started === null ? 0 : to - this.about.started;
		return [to - Math.min(WINDOW, Math.max(10, lasted)), to, Math.min(WINDOW, lasted)];
	}

	/** Adds points to a rank's line of a figure; `drops`: the last one there was not to stay. */
	trace(lines, { rank, replace, drops, points }) {
		if (replace) lines.delete(rank);
		const { x, y, t } = held(lines, rank, () => ({ x: [], y: [], t: [] }));
		if (drops) for (const one of [x, y, t]) one.pop();
		for (const [at, value, when] of points.map(list)) {
			if (number(at) === null) continue;
			x.push(at);
			y.push(Number(value ?? NaN));
			t.push(number(when) ?? at);
		}
		for (const one of [x, y, t]) one.splice(0, one.length - POINTS);
	}

	print(blocks) {
		for (const { rank, stream, start, skipped, lines } of blocks) {
			const valid = (rank === null || isRank(rank)) && ["out", "err"].includes(stream) && Array.isArray(lines);
			if (valid && number(start) !== null) this.lines.add(rank, stream, start, amount(skipped), lines);
		}
		this.changed("output");
	}

	// requests to the kernel

	send(message) {
		try {
			this.model.send({ ...message, run: this.run });
		} catch (error) {
			console.debug("xla_nb:", error);
		}
	}

	/** Asks for everything, at most once a second. */
	askWhole() {
		const wait = (this.askedWhole ?? -Infinity) + 1000 - performance.now();
		if (wait > 0) {
			this.later ??= setTimeout(() => {
				this.later = undefined;
				this.askWhole();
			}, wait);
			return;
		}
		this.askedWhole = performance.now();
		this.send({ type: "whole", page: PAGE });
	}

	/** Sends a request; calls `received` when the kernel has it, `silent` if it is late. */
	ask(message, { received, silent, answered }) {
		const request = ++this.asked;
		const timer = setTimeout(silent, PATIENCE);
		this.requests.set(request, { timer, received, answered });
		if (this.requests.size > 50) this.requests.delete(this.requests.keys().next().value);
		this.send({ ...message, request });
	}

	on_ack({ request }) {
		const waiting = this.requests.get(request);
		if (!waiting) return;
		clearTimeout(waiting.timer);
		waiting.received?.();
		waiting.received = null;
	}

	/** A question of the cell gets no answer any more: JupyterLab would run no other cell before. */
	on_withdrawn() {
		this.kernel?.removeInputGuard?.();
		for (const view of this.views) view.mute();
	}

	speak(text) {
		this.say = text;
		this.changed("head");
	}

	/** Asks the kernel to stop, and at another click to stop at once; interrupts it if it is silent. */
	halt() {
		if (this.over) return;
		if (this.about.live) return this.shutDown();
		if (this.stop === "asked" || this.stop === "interrupted") return this.interrupt();
		const again = this.stop === "acknowledged";
		const received = () => {
			if (this.stop !== "asked") return;
			this.stop = "acknowledged";
			this.speak(again ? "Ending the ranks…" : "Stopping the ranks. Click again to end them now.");
		};
		this.stop = "asked";
		this.speak("Stopping the ranks…");
		this.ask({ type: "stop" }, { received, silent: () => this.interrupt() });
	}

	/** Asks the kernel to end live ranks, at a second click: what they hold is lost. */
	shutDown() {
		if (this.stop === "asked" || this.stop === "acknowledged") return;
		const set = (stop, words) => {
			this.stop = stop;
			this.speak(words);
		};
		if (this.stop !== "armed") {
			setTimeout(() => this.stop === "armed" && set("no", ""), ARMED);
			return set("armed", "What the ranks hold will be lost. Click again to end them.");
		}
		set("asked", "");
		const silent = () => this.stop === "asked" && set("no", "The kernel does not answer. %xla_shutdown ends the ranks.");
		this.ask({ type: "shutdown" }, { received: () => set("acknowledged", ""), silent });
	}

	async interrupt() {
		if (this.over) return;
		this.stop = "interrupted";
		try {
			await this.kernel.interrupt();
			if (!this.over) this.speak("Interrupted the kernel.");
		} catch {
			// Some front ends do not give widgets the kernel.
			this.speak("This page cannot interrupt the kernel. Press ■ in the toolbar.");
		}
	}

	/** Asks where the ranks are; `of` is the only one that it is asked for, if any. */
	askStacks(of = null) {
		this.setStacks("asking", of === this.stacks.of ? this.stacks.groups : [], of);
		const silent = () => {
			if (this.stacks.state === "asking") this.setStacks("fallback", this.places(), of);
		};
		this.ask({ type: "stacks" }, { silent });
	}

	setStacks(state, groups = [], of = null) {
		this.stacks = { state, groups, of, at: timeOfDay(new Date()) };
		this.changed("stacks", "head", "ranks");
	}

	on_stacks(message) {
		this.on_ack(message);
		this.setStacks("answered", objects(message.groups).map(readGroup), this.stacks.of);
	}

	/** The last known place of each rank, for a kernel that cannot answer. */
	places() {
		const groups = new Map();
		for (const { rank, phase, place, detail } of this.cards.values()) {
			const note = detail ? `${phase}: ${detail}` : phase;
			const group = { ranks: [], place, stack: "", note };
			held(groups, `${place}\n${note}`, () => group).ranks.push(rank);
		}
		return [...groups.values()].map((group) => ({ ...group, who: ranksOf(group.ranks) }));
	}

	focus() {
		const selected = [...this.views].map(({ rank }) => rank).filter((rank) => rank !== undefined);
		this.lines.focused = new Set(selected);
		this.send({ type: "focus", rank: selected.at(-1) ?? null });
	}

	on_earlier(message) {
		this.on_ack(message);
		const { request, rank, stream, start, lines, first } = message;
		const { answered } = this.requests.get(request) ?? {};
		this.requests.delete(request);
		if (!answered || !Array.isArray(lines) || number(start) === null) return;
		answered(this.lines.read(rank, stream, start, lines), start, first === true);
	}
}
