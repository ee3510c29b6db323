// What the page knows of a run: one store per model, bounded. Messages only change the store, and say
// to its views which of their parts changed; requests to the kernel start here.

const PATIENCE = 800; // ms for the kernel to answer a request
const POINTS = 2000; // of one line of a figure
// Which parts of a view show each part that the kernel draws.
const SHOWN = { sign: "head", title: "head", about: "head", bar: "head", errors: "errors", counts: "ranks", ranks: "ranks", detail: "ranks", cells: "cells" };

/** The value of a key in a map, made if it is missing. */
function held(map, key, make) {
	if (!map.has(key)) map.set(key, make());
	return map.get(key);
}

class Store {
	about = { title: "", level: "calm", marked: [], state: "starting", over: false, live: false, stopping: "", started: null, cell: "", record: "", unit: "rank", focus: null };
	parts = Object.fromEntries(Object.keys(SHOWN).map((name) => [name, ""])); // as HTML
	cards = new Map(); // the phase of each rank
	figures = new Map();
	memory = new Map(); // by rank: a line of MiB
	lines = new Lines();
	stacks = { state: "closed", html: "", at: "" };
	variables = { words: "", html: "" }; // of live ranks
	stop = "no"; // no, asked, acknowledged, interrupted
	say = "";
	seq = 0;
	lacks = false; // something that was sent before
	offset = 0; // the kernel's clock minus the page's, in seconds
	views = new Set();
	requests = new Map();
	asked = 0;
	updated = new Date();
	frozen = null; // the kernel's time when the page lost it,
	farewell = ""; // and how that is told

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
		return this.about.over;
	}

	get now() {
		return this.frozen ?? Date.now() / 1000 + this.offset;
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
		if (this.over || this.frozen !== null) return;
		this.frozen = this.now;
		this.farewell = `${what}; last update ${timeOfDay(this.updated)}`;
		this.changed("ranks", "variables");
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
		this[`on_${message.type}`](message);
	}

	on_news(message) {
		this.lacks ||= message.seq !== this.seq + 1;
		this.seq = message.seq;
		if (message.whole) {
			clearTimeout(this.later);
			this.later = undefined;
			this.figures = new Map();
			if (this.lacks) this.reprint(message.before);
			this.lacks = false;
		} else if (this.lacks) this.askWhole();
		this.offset = message.now - Date.now() / 1000;
		if (message.about) this.describe(message.about);
		for (const [name, part] of Object.entries(message.parts ?? {})) {
			this.parts[name] = part;
			this.changed(SHOWN[name]);
		}
		if (message.phases) this.number(message.phases);
		if (message.memory) this.weigh(message.memory);
		if (message.uplot) this.loadCharts(message.uplot);
		if (message.figures) this.plot(message.figures);
		if (message.lines) this.print(message.lines);
	}

	/** Loads the library that draws charts. */
	async loadCharts(script) {
		if (this.uPlot) return;
		const url = URL.createObjectURL(new Blob([`${script}\nexport { uPlot };`], { type: "text/javascript" }));
		this.uPlot = (await import(url)).uPlot;
		URL.revokeObjectURL(url);
		this.changed("figures");
	}

	describe(about) {
		this.about = { ...this.about, ...about };
		if (this.over && this.stop !== "no") {
			this.stop = "no";
			this.say = "";
		}
		this.changed("head", "ranks", "output", "variables");
	}

	number(phases) {
		this.cards = new Map(phases.map(([rank, phase]) => [rank, { phase }]));
		this.lines.ranks = Math.max(this.lines.ranks, this.cards.size);
		this.changed("ranks", "figures", "output");
	}

	plot(figures) {
		for (const { name, ...own } of figures) this.trace(held(this.figures, name, () => new Map()), own);
		this.changed("figures");
	}

	/** Notes the memory of ranks, in MiB, at most once a second. */
	weigh(sizes) {
		const at = this.now - (this.about.started ?? this.now);
		for (const [rank, size] of sizes) {
			const { x, y, t } = held(this.memory, rank, () => ({ x: [], y: [], t: [] }));
			if (x.length && at - x.at(-1) < 1) continue;
			x.push(at);
			y.push(size);
			t.push(at);
			if (x.length > 400) for (const one of [x, y, t]) one.splice(0, one.length, ...one.filter((_, i) => i % 2 === 0));
		}
		this.changed("figures");
	}

	askVariables() {
		this.on_variables({ ...this.variables, words: "Asking the ranks…" });
		this.send({ type: "variables" });
	}

	on_variables({ words, html }) {
		this.variables = { words, html };
		this.changed("variables");
	}

	/** Adds points to a rank's line of a figure; `drops`: the last one there was not to stay. */
	trace(lines, { rank, replace, drops, points }) {
		if (replace) lines.delete(rank);
		const { x, y, t } = held(lines, rank, () => ({ x: [], y: [], t: [] }));
		if (drops) for (const one of [x, y, t]) one.pop();
		for (const [at, value, when] of points) {
			x.push(at);
			y.push(Number(value));
			t.push(when);
		}
		for (const one of [x, y, t]) one.splice(0, one.length - POINTS);
	}

	/** Holds these lines alone. */
	reprint(blocks) {
		this.lines.byRank.clear();
		this.lines.received.clear();
		for (const view of this.views) view.parts.output.refresh();
		this.print(blocks);
	}

	print(blocks) {
		for (const block of blocks) this.lines.add(block);
		this.changed("output");
	}

	// requests to the kernel

	send(message) {
		try {
			this.model.send(message);
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
		this.send({ type: "whole" });
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

	/** Asks the kernel to stop, and at another click to stop at once; interrupts it if it is silent.
	 * Of live ranks it asks the user first: what they hold is lost. */
	halt() {
		const { live } = this.about;
		if (this.over || (live && !confirm("What the ranks hold will be lost. End them?"))) return;
		if (this.stop === "asked" || this.stop === "interrupted") return this.interrupt();
		const again = live || this.stop === "acknowledged";
		const received = () => {
			if (this.stop !== "asked") return;
			this.stop = "acknowledged";
			this.speak(again ? "Ending the ranks…" : "Stopping the ranks. Click again to end them now.");
		};
		const silent = () => {
			if (!live) return this.interrupt();
			this.stop = "no";
			this.speak("The kernel does not answer. %xla_shutdown ends the ranks.");
		};
		this.stop = "asked";
		this.speak(live ? "Ending the ranks…" : "Stopping the ranks…");
		this.ask({ type: live ? "shutdown" : "stop" }, { received, silent });
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

	/** Asks where the ranks are. */
	askStacks() {
		this.setStacks("asking", this.stacks.html);
		const silent = () => this.stacks.state === "asking" && this.setStacks("silent");
		this.ask({ type: "stacks" }, { silent });
	}

	setStacks(state, html = "") {
		this.stacks = { state, html, at: timeOfDay(new Date()) };
		this.changed("stacks", "head");
	}

	on_stacks(message) {
		this.on_ack(message);
		if (this.stacks.state === "closed") return; // meanwhile
		this.setStacks("answered", message.html);
	}

	focus() {
		const selected = [...this.views].map(({ rank }) => rank).filter((rank) => rank !== undefined);
		this.lines.focused = new Set(selected);
		this.send({ type: "focus", rank: selected.at(-1) ?? null });
	}

	on_earlier(message) {
		this.on_ack(message);
		const { request, start, first } = message;
		const { answered } = this.requests.get(request) ?? {};
		this.requests.delete(request);
		answered?.(this.lines.read(message), start, first);
	}
}
