// The page of a run's live panel: all ranks, their output, Stop and Stacks. Basic parts come first.
// The code depends on ids, never on texts from the kernel.

// --- Words for numbers, times and ranks.


const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const count = (n) => whole.format(n);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const joined = (...texts) => texts.filter(Boolean).join(" · ");

const timeOfDay = (date) => date.toTimeString().slice(0, 8);

/** Formats a growing duration like wording.py, in at most two units. */
function duration(seconds) {
	const s = Math.max(0, Math.floor(seconds));
	const m = Math.floor(s / 60);
	const [[high, unit], [low, part]] = m < 60 ? [[m, "min"], [s % 60, "s"]] : [[Math.floor(m / 60), "h"], [m % 60, "min"]];
	if (!high) return `${low} ${part}`;
	return low ? `${high} ${unit} ${low} ${part}` : `${high} ${unit}`;
}

/** Formats ranks in order like wording.py: `0–3, 5` or `0, 1`. */
function spans(numbers) {
	const runs = [];
	for (const n of [...numbers].sort((a, b) => a - b)) {
		if (runs.length && runs.at(-1).at(-1) === n - 1) runs.at(-1).push(n);
		else runs.push([n]);
	}
	return runs.map((run) => (run.length > 2 ? `${run[0]}–${run.at(-1)}` : run.join(", "))).join(", ");
}

/** Formats a number like facts.py. */
function figure(value) {
	if (!isFinite(value)) return `${value}`.replace("inity", "").replace("I", "i");
	const large = Math.abs(value);
	const short = Number(value.toPrecision(4));
	if (large >= 1e9 || (large < 1e-4 && large > 0)) return short.toExponential().replace("+", "");
	return large >= 1000 ? count(value) : `${short}`;
}

// --- Nodes of the page, changed only where something differs. Text is always set as text.

/** Creates a node: `kind` is a tag with classes (`div.log`), `label` the accessible name. */
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

/** Sets the text of a node if it differs. */
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
		// No permission, or the page does not use https.
		const give = (event) => {
			event.clipboardData.setData("text/plain", text);
			event.preventDefault();
		};
		document.addEventListener("copy", give, { capture: true, once: true });
		document.execCommand("copy");
	}
}

// --- Sections that fold. The page remembers which are folded, for all panels, if storage is available.

/** Adds a title to the head of a section; clicking it folds the section. */
function folding(node, name, words, into) {
	const key = `xla_nb.folded.${name}`;
	const flip = () => {
		const closed = node.classList.toggle("xn-folded");
		mark(toggle, "aria-expanded", !closed);
		try {
			localStorage.setItem(key, closed);
		} catch {
			// The state is not remembered.
		}
	};
	const toggle = button(words, flip, { "aria-expanded": true }, "fold");
	into.prepend(h("h4.h", {}, toggle));
	try {
		if (localStorage.getItem(key) === "true") flip();
	} catch {
		// No state was remembered.
	}
	return node;
}

// --- The bounded lines of output that the page holds.

const HELD = 8000; // lines held over all ranks,
const HELD_EACH = 30; // at least this many per rank

/** Returns a line without its colors. */
const textOf = ({ html }) => Object.assign(document.createElement("template"), { innerHTML: html }).content.textContent;

/** The lines held, by rank (null is the cell itself), numbered in order of arrival. A line with a `gap` stands for so
 * many that were not sent. */
class Lines {
	byRank = new Map();
	received = new Map(); // number of lines by rank and stream, including those not sent
	next = 0;
	ranks = 1;

	add({ rank, stream, skipped, lines }) {
		const all = held(this.byRank, rank, () => []);
		if (skipped > 0) all.push(this.line(rank, stream, "", skipped));
		all.push(...lines.map((html) => this.line(rank, stream, html)));
		all.splice(0, Math.max(0, all.length - Math.max(HELD_EACH, Math.floor(HELD / this.ranks))));
		held(this.received, rank, () => ({ out: 0, err: 0 }))[stream] += skipped + lines.length;
	}

	line(rank, stream, html, gap = 0) {
		return { id: this.next++, rank, stream, html, gap };
	}

	/** Returns the last `most` matching lines of a rank (undefined: all ranks) newer than `id`, in order. */
	since(rank, id, matches, most) {
		const lines = [];
		for (const all of rank === undefined ? this.byRank.values() : [this.byRank.get(rank) ?? []]) {
			const enough = lines.length + most;
			for (let i = all.length - 1; i >= 0 && all[i].id > id && lines.length < enough; i--)
				if (matches(all[i])) lines.push(all[i]);
		}
		return lines.sort((a, b) => a.id - b.id).slice(-most);
	}

	/** Returns how many lines a rank (undefined: all ranks) has written to these streams. */
	total(rank, streams) {
		const each = rank === undefined ? [...this.received.values()] : [this.received.get(rank) ?? { out: 0, err: 0 }];
		return each.reduce((sum, counts) => sum + streams.reduce((part, stream) => part + counts[stream], 0), 0);
	}
}

// --- The page's data about a run: one bounded store per model. Messages change only the store, which
// notifies its views of the changed parts. Requests to the kernel start here.

const PATIENCE = 800; // ms for the kernel to answer a request
const LATE = 3; // delay of messages in seconds from which the page reports it
const ARMED = 10_000; // ms during which a second click ends live ranks
// The part of a view that shows each part rendered by the kernel.
const SHOWN = { sign: "head", title: "head", about: "head", bar: "head", errors: "errors", counts: "ranks", ranks: "ranks", detail: "ranks", cells: "cells" };

/** Returns the value of a key in a map, created if it is missing. */
function held(map, key, make) {
	if (!map.has(key)) map.set(key, make());
	return map.get(key);
}

class Store {
	about = { title: "", level: "calm", marked: [], over: false, live: false, stopping: "", started: null, cell: "", record: "", focus: null };
	parts = Object.fromEntries(Object.keys(SHOWN).map((name) => [name, ""])); // as HTML
	ranks = [];
	figures = new Map();
	lines = new Lines();
	stacks = { state: "closed", html: "", at: "" };
	stop = "no"; // no, armed, asked, acknowledged, interrupted
	say = "";
	seq = 0;
	lacks = false; // whether an earlier message is missing
	offset = null; // the kernel's clock minus the page's, in seconds, from the fastest message,
	behind = 0; // and how much longer the newest message took
	views = new Set();
	requests = new Map();
	asked = 0;
	updated = new Date();
	frozen = null; // the kernel's time when the page lost it,
	farewell = ""; // and the title for that

	constructor(model) {
		this.model = model;
		this.run = String(model.get("run") ?? "");
		this.receive = (message) => this.take(message);
		model.on("msg:custom", this.receive);
		this.listen();
		this.askWhole();
	}

	close() {
		this.model.off("msg:custom", this.receive);
		this.kernel?.iopubMessage?.disconnect(this.hear, this);
		this.kernel?.disposed?.disconnect(this.part, this);
		for (const { timer } of this.requests.values()) clearTimeout(timer);
		clearTimeout(this.later);
	}

	get over() {
		return this.about.over;
	}

	get now() {
		return this.frozen ?? Date.now() / 1000 + (this.offset ?? 0);
	}

	changed(...parts) {
		for (const view of this.views) view.changed(...parts);
	}

	/** Listens to the kernel's connection, because a failing widget manager does not report a restart. */
	listen() {
		try {
			this.kernel = this.model.widget_manager.kernel;
			this.kernel.iopubMessage.connect(this.hear, this);
			this.kernel.disposed.connect(this.part, this);
		} catch {
			// Some front ends do not give widgets access to the kernel.
		}
	}

	/** A status with another session comes from a new kernel, or from the server that is restarting it. */
	hear(_, { header }) {
		if (header.msg_type !== "status") return;
		if ((this.session ??= header.session) !== header.session) this.freeze();
		this.session = header.session;
	}

	part() {
		this.freeze("Kernel disconnected");
	}

	/** Handles the loss of the kernel: no more messages arrive, and Stop would hit another cell. */
	freeze(what = "Kernel restarted") {
		if (this.over || this.frozen !== null) return;
		this.frozen = this.now;
		this.farewell = `${what}; last update ${timeOfDay(this.updated)}`;
		this.changed("ranks");
		for (const view of this.views) view.tick(); // so that the time stops here, not at the next second
		this.speak(`Its ranks end with the kernel. import xla_nb; xla_nb.open_run("${this.run}") shows their output.`);
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
		this.offset = Math.max(this.offset ?? -Infinity, message.now - Date.now() / 1000);
		const behind = this.now - message.now;
		if (Math.max(behind, this.behind) > LATE) this.changed("head");
		this.behind = behind;
		if (message.about) this.describe(message.about);
		for (const [name, part] of Object.entries(message.parts ?? {})) {
			this.parts[name] = part;
			this.changed(SHOWN[name]);
		}
		if (message.ranks) this.number(message.ranks);
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
		this.changed("head", "ranks", "output");
	}

	number(ranks) {
		this.ranks = ranks;
		this.lines.ranks = Math.max(this.lines.ranks, ranks.length);
		this.changed("ranks", "output");
	}

	plot(figures) {
		for (const one of figures) this.figures.set(one.name, one);
		this.changed("figures");
	}

	/** Replaces all held lines with these. */
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

	/** Sends a request and returns its number. Calls `received` when the kernel acknowledges it, `silent` if that is late. */
	ask(message, { received, silent }) {
		const request = ++this.asked;
		this.requests.set(request, { timer: setTimeout(silent, PATIENCE), received });
		this.send({ ...message, request });
		return request;
	}

	on_ack({ request }) {
		const { timer, received } = this.requests.get(request) ?? {};
		this.requests.delete(request);
		clearTimeout(timer);
		received?.();
	}

	/** Cancels the cell's question, because JupyterLab would run no other cell before its answer. */
	on_withdrawn() {
		this.kernel?.removeInputGuard?.();
		for (const view of this.views) view.mute();
	}

	speak(text) {
		this.say = text;
		this.changed("head");
	}

	/** Asks the kernel to stop, and on a second click to stop at once; interrupts it if it does not answer.
	 * Ending live ranks, which lose their variables, takes a second click: some front ends block dialogs. */
	halt() {
		const { live } = this.about;
		if (this.over) return;
		if (live && this.stop === "no") {
			setTimeout(() => this.stop === "armed" && this.disarm(""), ARMED);
			this.stop = "armed";
			return this.speak("The ranks' variables will be lost. Click again to end the ranks.");
		}
		if (this.stop === "asked" || this.stop === "interrupted") return this.interrupt();
		const again = live || this.stop === "acknowledged";
		const received = () => {
			if (this.stop !== "asked") return;
			this.stop = "acknowledged";
			this.speak(again ? "Ending the ranks…" : "Stopping the ranks. Click again to end them now.");
		};
		const silent = () => (live ? this.disarm("The kernel is not responding. Run %xla_shutdown to end the ranks.") : this.interrupt());
		this.stop = "asked";
		this.speak(live ? "Ending the ranks…" : "Stopping the ranks…");
		this.ask({ type: "stop" }, { received, silent });
	}

	disarm(words) {
		this.stop = "no";
		this.speak(words);
	}

	async interrupt() {
		if (this.over) return;
		this.stop = "interrupted";
		try {
			await this.kernel.interrupt();
			if (!this.over) this.speak("Interrupted the kernel.");
		} catch {
			// Some front ends do not give widgets access to the kernel.
			this.speak("This page cannot interrupt the kernel. Press ■ in the toolbar.");
		}
	}

	/** Requests the stacks of the ranks. */
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
		if (this.stacks.state === "closed") return; // closed while waiting
		this.setStacks("answered", message.html);
	}

	focus() {
		const selected = [...this.views].map(({ rank }) => rank).filter((rank) => rank !== undefined);
		this.send({ type: "focus", rank: selected.at(-1) ?? null });
	}

	on_earlier(message) {
		this.on_ack(message);
		for (const view of this.views) view.parts.output.take(message);
	}
}

// --- Parts rendered by the kernel (views/rendering/html.py). Updating them keeps unchanged nodes, and with
// these the focus, the selection, open folds and a click in progress.

const KEPT = new Set(["open", "hidden", "tabindex", "aria-selected"]); // set by the page or the user

/** Updates the content of a node to match the HTML. */
function place(node, html, view) {
	if (node.xnHtml === html) return;
	node.xnHtml = html;
	const template = document.createElement("template");
	template.innerHTML = html;
	prepare(template.content, view);
	const { activeElement } = document;
	become(node, template.content);
	// A node that moved has lost the focus.
	if (node.contains(activeElement) && activeElement !== document.activeElement) activeElement.focus({ preventScroll: true });
}

function become(old, next) {
	const ranks = new Map([...old.children].map((node) => [node.dataset.rank, node]));
	let at = old.firstChild;
	for (const wanted of [...next.childNodes]) {
		const rank = wanted.dataset?.rank;
		const found = rank === undefined ? at : ranks.get(rank);
		if (found?.nodeName !== wanted.nodeName) {
			old.insertBefore(wanted, at);
			continue;
		}
		if (found === at) at = at.nextSibling;
		else old.insertBefore(found, at);
		if (found.nodeType === Node.ELEMENT_NODE) renew(found, wanted);
		else if (found.data !== wanted.data) found.data = wanted.data;
	}
	while (at) {
		const gone = at;
		at = at.nextSibling;
		gone.remove();
	}
}

function renew(found, wanted) {
	for (const { name, value } of wanted.attributes)
		if (!KEPT.has(name) && found.getAttribute(name) !== value) found.setAttribute(name, value);
	for (const { name } of [...found.attributes])
		if (!KEPT.has(name) && !wanted.hasAttribute(name)) found.removeAttribute(name);
	become(found, wanted);
}

/** Adds what only a page can do: links to lines of the notebook, running times. */
function prepare(fragment, view) {
	const linked = view.root.closest(".jp-Notebook");
	for (const node of linked ? fragment.querySelectorAll("[data-cell]") : []) {
		node.setAttribute("role", "link");
		node.tabIndex = node.closest("[data-rank]") ? -1 : 0;
	}
	for (const node of fragment.querySelectorAll("[data-share]")) {
		node.setAttribute("role", "progressbar");
		node.setAttribute("aria-label", node.title);
		node.setAttribute("aria-valuenow", node.dataset.share);
	}
	for (const image of fragment.querySelectorAll(".xn-lane img")) image.replaceWith(inline(image));
	for (const node of fragment.querySelectorAll("[data-since]")) tick(node, view.store);
}

/** Converts an image to nodes of the page: a changing image would create another document each time. */
function inline({ src, alt, style, parentNode }) {
	const holder = document.createElement("template");
	holder.innerHTML = atob(src.split(",")[1]);
	const drawing = holder.content.firstChild;
	drawing.querySelector("style").remove(); // it would apply to the whole page
	for (const [name, value] of Object.entries({ role: "img", "aria-label": alt, style: style.cssText })) drawing.setAttribute(name, value);
	parentNode.title = alt;
	return drawing;
}

/** Updates the text of a running time. */
function tick(node, { now }) {
	const words = duration(now - Number(node.dataset.since));
	if (node.textContent !== words) node.textContent = words;
}

/** Shows the cell line that a link names. The nodes of the editor (CodeMirror) refer to its view. */
function reveal({ dataset: { cell: number, line } }, view) {
	const own = view.root.closest(".jp-Cell");
	const prompt = (cell) => cell.querySelector(".jp-InputPrompt")?.textContent ?? "";
	const isIt = (cell) => prompt(cell).includes(`[${number}]`) || (cell === own && view.store.about.cell === `Cell In[${number}]`);
	const cell = [...view.root.closest(".jp-Notebook").querySelectorAll(".jp-CodeCell")].find(isIt);
	if (!cell) return view.store.speak(`Cell In[${number}] is no longer in this notebook.`);
	const content = cell.querySelector(".cm-content");
	const editor = content?.cmTile?.view ?? content?.cmView?.view;
	const found = editor && line <= editor.state.doc.lines ? editor.state.doc.line(Number(line)) : null;
	if (found) {
		editor.focus();
		editor.dispatch({ selection: { anchor: found.from, head: found.to } });
	}
	const row = found && editor.domAtPos(found.from).node;
	const at = (row?.nodeType === 1 ? row : row?.parentElement)?.closest(".cm-line") ?? content ?? cell;
	at.scrollIntoView({ block: "center" });
}

// --- The head: the diagnosis, facts about the run and its progress, with Stop and Stacks.

const QUIET = 0.5; // seconds for which a new run is a single line

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

	get stopping() {
		const { about, over, stop, frozen } = this.view.store;
		return frozen === null && !over && (about.stopping !== "" || !["no", "armed"].includes(stop));
	}

	/** Whether the run has just started: most cells end before there is more to show than a line. */
	get isNew() {
		const { about, over, now } = this.view.store;
		return !over && !about.live && (about.started === null || now - about.started < QUIET);
	}

	draw(now) {
		const { view, stopping } = this;
		const { about, over, parts, frozen, farewell, say, stacks, behind } = view.store;
		if (this.isNew) this.later ??= setTimeout(() => ((this.later = null), view.changed("head")), 1000 * QUIET);
		const title = frozen === null ? about.title : farewell;
		mark(view.root, "data-level", frozen === null ? about.level : "calm");
		place(this.sign, parts.sign, view);
		place(this.sentence, frozen === null ? parts.title : farewell, view);
		const [ask, act] = about.live ? ["Shut down", "Shutting down…"] : ["Stop", "Stopping…"];
		put(this.stop, stopping ? act : ask);
		this.stop.disabled = over || frozen !== null || (about.live && stopping);
		this.stacks.disabled = (over || frozen !== null) && stacks.state === "closed";
		mark(this.stacks, "aria-expanded", stacks.state !== "closed");
		place(this.about, parts.about, view);
		place(this.bar, frozen === null ? parts.bar : "", view);
		const late = behind > LATE && frozen === null && `This page is ${duration(behind)} behind: it or its connection is slow.`;
		put(this.say, joined(late, say));
		this.speak(now, title);
	}

	/** Announces the title to screen readers, at most every five seconds, and not if only numbers change. */
	speak(now, title) {
		const { about, over } = this.view.store;
		const gist = title.replace(/\d[\d.,:]*/g, "0") + about.marked;
		if (gist === this.gist) return;
		const due = over || now - (this.spoken ?? -5000) >= 5000;
		this.gist = due ? gist : "";
		if (due) this.spoken = now;
		put(this.live, due ? title : ""); // an old one would no longer be true
	}
}

// --- Sections rendered by the kernel: errors, stacks, cells of live ranks.

/** A part rendered by the kernel, in a separate section. */
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

/** Errors and notes. */
const errors = (view) => new Drawn(view, "errors", section("errors", "Errors and notes"));

/** Cells that live ranks have run. */
function cells(view) {
	const [head, body] = [div("bar-head"), div("scroll")];
	return new Drawn(view, "cells", folding(section("ran", "Cells", head, body), "cells", "Cells", head), body);
}

/** The stacks of the ranks, requested by a button. */
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
			silent: "No answer yet. Each row shows where its rank was last seen.",
			answered: html ? `As of ${at}, innermost line first.` : "No rank answered.",
		};
		show(this.node, state !== "closed");
		mark(this.node, "data-state", state);
		put(this.words, words[state] ?? "");
		place(this.groups, html, this.view);
	}
}

// --- All ranks: search, keyboard navigation and selection.

const MOVES = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: "up", ArrowDown: "down", Home: "home", End: "end" };
const FEW = 8; // up to this many ranks need no search

class Ranks {
	needle = "";

	constructor(view) {
		this.view = view;
		this.title = span("words");
		this.counts = h("ul.counts", { label: "Ranks by phase" });
		this.finder = search("Find ranks", () => {
			this.needle = this.finder.value.trim().toLowerCase();
			view.changed("ranks");
		});
		const about = {
			keydown: (event) => this.key(event),
			click: ({ target }) => target.closest("[role=link]") || this.pick(target.closest("[data-rank]")),
			focusin: ({ target }) => this.rove(target.closest("[data-rank]")),
		};
		this.grid = h("div.grid", about);
		this.none = div("quiet"); // shown if no rank matches
		this.facts = div("facts");
		const close = link("Close", () => view.focus(undefined));
		this.detail = h("div.detail", { role: "group", label: "Selected rank" }, this.facts, close);
		const head = div("bar-head", this.counts, this.finder);
		const node = section("ranks", "All ranks", head, this.grid, this.none, this.detail);
		this.node = folding(node, "ranks", this.title, head);
	}

	get nodes() {
		return [...this.grid.querySelectorAll("[data-rank]")];
	}

	draw() {
		const { view } = this;
		const { ranks, about, parts, frozen } = view.store;
		show(this.node, ranks.length);
		put(this.title, plural(ranks.length, "rank"));
		place(this.counts, frozen === null ? parts.counts : "", view);
		place(this.grid, parts.ranks, view);
		for (const node of this.nodes) mark(node, "aria-selected", node.dataset.rank === String(view.rank));
		this.find();
		this.rove(this.nodes.find(({ tabIndex, hidden }) => !tabIndex && !hidden) ?? this.nodes[0]);
		const told = view.rank !== undefined && about.focus === view.rank ? parts.detail : "";
		show(this.detail, told);
		place(this.facts, told, view);
		if (told && this.revealing) this.detail.scrollIntoView({ block: "nearest" }); // it may be below many tiles
		this.revealing &&= !told;
	}

	/** Hides ranks that do not match the search, and hosts without a match. */
	find() {
		const { needle } = this;
		const { ranks } = this.view.store;
		show(this.finder, ranks.length > FEW);
		const number = needle.match(/^(?:rank )?(\d+)$/)?.[1];
		const has = (node) => `${node.title} ${node.textContent}`.toLowerCase().includes(needle);
		for (const host of this.grid.querySelectorAll(".xn-host")) {
			const ranks = [...host.querySelectorAll("[data-rank]")];
			const whole = !number && host.ariaLabel?.toLowerCase().includes(needle);
			for (const node of ranks) show(node, number ? node.dataset.rank === number : whole || has(node));
			show(host, whole || !needle || ranks.some(({ hidden }) => !hidden));
		}
		const none = needle && this.nodes.every(({ hidden }) => hidden);
		show(this.none, none);
		put(this.none, number ? `No rank ${number}; the ranks are ${spans(ranks)}.` : `No rank matches “${needle}”.`);
	}

	/** Moves the ranks' single tab stop. */
	rove(stop) {
		for (const node of stop ? this.nodes : []) node.tabIndex = node === stop ? 0 : -1;
	}

	key(event) {
		const at = event.target.closest("[data-rank]");
		if (!at || event.target !== at || event.ctrlKey || event.metaKey || event.altKey) return;
		if (event.key === "Enter" || event.key === " ") this.choose(Number(at.dataset.rank));
		else if (event.key in MOVES) this.go(at, MOVES[event.key]);
		else return;
		event.preventDefault();
	}

	go(here, move) {
		const nodes = this.nodes.filter(({ hidden }) => !hidden);
		const at = nodes.indexOf(here);
		const columns = getComputedStyle(here.parentNode).gridTemplateColumns.split(" ").length;
		const to = { up: at - columns, down: at + columns, home: 0, end: nodes.length - 1 }[move] ?? at + move;
		nodes[to]?.focus();
	}

	pick(node) {
		if (!node || String(getSelection())) return;
		const rank = Number(node.dataset.rank);
		this.choose(rank === this.view.rank ? undefined : rank);
	}

	choose(rank) {
		this.revealing = rank !== undefined;
		this.view.focus(rank);
	}
}

// --- Charts of figures: the kernel computes their lines (rendering/figures.py), uPlot draws them.

const HIGH = 96; // height of a chart in pixels
const SCALE = Array.from({ length: 1800 }, (_, k) => Number(`${[1, 2, 5][k % 3]}e${Math.floor(k / 3) - 300}`)); // tick distances for values
const WHOLE = SCALE.filter(Number.isInteger); // and for steps
const isFigure = (y) => typeof y === "number";

/** Returns ticks of a logarithmic axis: powers of ten; on a short axis also numbers between, or evenly spaced ones. */
function powers(low, high) {
	const [first, last] = [low, high].map((end) => Math.floor(Math.log10(end)));
	const apart = Math.ceil((last - first) / 5) || 1;
	for (const parts of [[1], [1, 3], [1, 2, 5]]) {
		const found = [];
		for (let k = first; k <= last; k += apart) found.push(...parts.map((part) => Number(`${part}e${k}`)));
		const within = found.filter((value) => value >= low && value <= high);
		if (within.length > 2) return within;
	}
	const step = SCALE.findLast((step) => Math.floor(high / step) - Math.ceil(low / step) >= 2) ?? high - low;
	const least = Math.ceil(low / step);
	return Array.from({ length: Math.floor(high / step) - least + 1 }, (_, k) => Number(((least + k) * step).toPrecision(12)));
}

/** Formats numbers on an axis, with enough digits to distinguish them. */
function told(values) {
	const short = values.map(figure);
	return new Set(short).size === short.length ? short : values.map((value) => `${Number(value.toPrecision(10))}`);
}

class Chart {
	at = span("quiet.at");
	legend = div("legend");
	zoomed = false;

	constructor(view, name) {
		this.view = view;
		this.note = span("quiet");
		this.plot = h("div.plot", { role: "img" });
		const caption = h("figcaption.caption", {}, h("strong", {}, name), " ", this.note);
		this.node = h("figure.figure", { "data-figure": name }, caption, this.plot, this.legend);
	}

	/** `lines`: each with its name, rank, colour, x, y and last value as text; for more than two ranks, their maximum,
	 * minimum and mean, which also has its number of ranks, out of `total`. `marks`: steps where a line became
	 * non-finite. */
	draw({ note, summary, lines, marks, steps, total }) {
		const width = this.plot.clientWidth;
		if (!width) return; // folded, or the theme is changing
		const { log, store, inks } = this.view;
		this.inks = inks; // colors of this drawing
		Object.assign(this, { lines, marks, steps, total });
		put(this.note, note);
		mark(this.plot, "aria-label", summary);
		const hidden = (y) => log && y !== null && y <= 0; // a logarithmic axis cannot show these
		this.hides = lines.some(({ y }) => y.some(hidden));
		const data = store.uPlot.join(lines.map(({ x, y }) => [x, y.map((value) => (hidden(value) ? null : value))]));
		const { min, max } = this.zoomed ? this.uplot.scales.x : {};
		const whole = lines.every(({ x, y }) => x.every((at, i) => y[i] === null || Number.isInteger(at)));
		fill(this.plot, JSON.stringify([lines.map(({ name }) => name), log, whole]), () => [this.renewed(width, whole).root]);
		this.uplot.batch((uplot) => {
			if (uplot.width !== width) uplot.setSize({ width, height: HIGH });
			uplot.setData(data, !this.zoomed);
			if (this.zoomed) uplot.setScale("x", { min, max });
		});
		this.read();
	}

	/** Creates a new plot, replacing one with other lines or axes. */
	renewed(width, whole) {
		this.uplot?.destroy();
		const style = getComputedStyle(this.plot);
		const { log, store } = this.view;
		const ink = (name) => () => style.getPropertyValue(`--xn-${name}`); // read when needed
		const axis = { stroke: ink("quiet"), font: `12px ${style.fontFamily}`, gap: 4, ticks: { show: false } };
		const room = (texts) => 8 + 7.5 * Math.max(4, ...(texts ?? []).map(({ length }) => length));
		const across = {
			...{ size: 18, space: (_, axis, low, high) => 4 + room([figure(high)]), incrs: whole ? WHOLE : null, grid: { show: false } },
			values: (_, all) => told(all),
		};
		const up = {
			...{ size: (_, texts) => room(texts), space: 12, incrs: SCALE, grid: { stroke: ink("tint2"), width: 1 } }, // three or more
			values: (_, all) => told(all).map((text, i) => (i % 2 && all.length > 5 ? "" : text)),
			...(log && { splits: (_, axis, low, high) => powers(low, high), filter: (_, all) => all }),
		};
		const chosen = this.lines.length > 3; // a rank's line in front of the mean of all
		const line = ({ name, rank, colour }) => ({
			...{ stroke: rank === null ? ink("running") : colour, pxAlign: 0, points: { size: 4, width: 0 } },
			...{ width: chosen && rank !== null ? 2.2 : 1.4, alpha: rank === null && (chosen || name !== "mean") ? 0.35 : 1 },
		});
		const wide = (_, from, to) => {
			const [low, high] = this.zoomed ? [from, to] : this.steps; // including steps without a finite value
			return low < high ? [low, high] : [low - 0.5, high + 0.5];
		};
		const range = (_, low, high) => {
			if (low === null) return [null, null];
			const more = low < high ? (high / low) ** 0.06 : 2;
			if (log) return [low / more, high * more];
			const margin = Math.abs(low) / 10 || 1; // as in rendering/chart.py
			return low < high ? store.uPlot.rangeNum(low, high, 0.1, true) : [low - margin, high + margin];
		};
		this.uplot = new store.uPlot({
			...{ width, height: HIGH, padding: [6, 22, 0, 0], legend: { show: false } },
			scales: { x: { time: false, range: wide }, y: { distr: log ? 3 : 1, range } },
			axes: [across, up].map((one) => ({ ...axis, ...one })),
			series: [{}, ...this.lines.map(line)],
			bands: this.lines[0].rank === null ? [{ series: [1, 2], fill: () => `color-mix(in srgb, ${ink("running")()} 40%, transparent)` }] : [],
			cursor: { y: false, points: { show: false }, drag: { dist: 5 } },
			hooks: { draw: [(uplot) => this.turn(uplot)], setCursor: [() => this.read()], setSelect: [() => this.zooms(true)] },
		}, [[]]);
		this.uplot.over.addEventListener("dblclick", () => this.zooms(false));
		return this.uplot;
	}

	/** Marks where lines became non-finite, in the visible range. */
	turn({ under, scales: { x }, valToPos }) {
		const at = this.marks.filter((step) => x.min <= step && step <= x.max).map((step) => Math.round(valToPos(step, "x")));
		under.replaceChildren(...[...new Set(at)].map((left) => h("i.odd", { style: `left: ${left}px` })));
	}

	zooms(on) {
		this.zoomed = on;
		this.read();
	}

	/** Updates the legend: values under the pointer, or the last ones, with their step. */
	read() {
		const { data, scales, cursor: { idx, left } } = this.uplot;
		const over = left >= 0 && isFigure(idx);
		const ofAll = this.lines[0]?.rank === null;
		const { x, ranks } = this.lines[2] ?? {}; // the mean
		const isGap = over && ofAll && ranks[x.indexOf(data[0][idx])] === 0; // between two steps
		const under = isGap ? idx + (this.uplot.posToVal(left, "x") < data[0][idx] ? -1 : 1) : idx;
		const shown = (x, i) => (!this.zoomed || x <= scales.x.max) && (!ofAll || isFigure(data[3][i]));
		const at = over ? under : ofAll || this.zoomed ? data[0].findLastIndex(shown) : -1; // such as the end of the mean
		const step = at < 0 ? this.steps[1] : data[0][at];
		const apart = at < 0 && new Set(this.lines.map(({ x }) => x.at(-1))).size > 1;
		const last = apart ? "last of each" : isFigure(step) && `step ${figure(step)}`;
		const some = ofAll ? ranks[x.indexOf(step)] : this.total;
		const of = some < this.total && `of ${plural(some, "rank")}`;
		put(this.at, joined(this.hides && "values ≤ 0 not drawn", this.zoomed && "zoomed", last, of));
		const value = (newest, y) => (at < 0 ? newest : isFigure(y) && figure(y));
		const rows = this.lines.map((line, n) => [line, value(line.last, data[n + 1][at])]).filter(([, text]) => text);
		const label = ({ name, rank, colour }) => (rank === null ? [span("quiet", name)] : [h("i.swatch", { style: `background: ${colour}` }), name]);
		const row = ([line, text]) => h("span", { "data-legend": line.rank ?? line.name }, ...label(line), h("b", {}, text));
		fill(this.legend, String(rows.map(([{ name }, text]) => [name, text])), () => [this.at, ...rows.map(row)]);
	}
}

class Figures {
	charts = new Map();
	grid = div("figures-grid");

	constructor(view) {
		this.view = view;
		const redraw = () => view.changed("figures");
		const flip = () => {
			view.log = !view.log;
			mark(this.log, "aria-pressed", view.log);
			redraw();
		};
		this.log = button("log", flip, { "aria-pressed": false, title: "Logarithmic axis" });
		const head = div("bar-head", span("space"), this.log);
		this.node = folding(section("figures", "Figures", head, this.grid), "figures", "Figures", head);
		this.resized = new ResizeObserver(redraw);
		this.resized.observe(this.grid);
	}

	draw() {
		const { figures, uPlot } = this.view.store;
		show(this.node, uPlot && figures.size);
		if (!uPlot) return; // until it is loaded
		const chart = (key) => held(this.charts, key, () => new Chart(this.view, key));
		const keys = [...figures.keys()];
		fill(this.grid, JSON.stringify(keys), () => keys.map((key) => chart(key).node));
		for (const [key, one] of figures) chart(key).draw(one);
	}

	close() {
		this.resized.disconnect();
		for (const { uplot } of this.charts.values()) uplot?.destroy();
	}
}

// --- Output: lines as they arrive, earlier ones on request, with a filter and copy.

const FOLDS = 200; // recent rows that an equal line of another rank may join

/** Rows of output. A line joins an equal row of another rank if that follows the row of the rank's previous
 * line. */
class Folds {
	rows = new Map(); // by stream and text: the newest row
	last = new Map(); // by rank: the number of the row of its last line
	next = 0;

	/** Returns the row that a line joins; null if it needs a new row, which `add` registers. */
	join({ rank, stream, gap, html }) {
		const row = gap ? undefined : this.rows.get(`${stream} ${html}`);
		const near = row && row.at > this.next - FOLDS && row.at > (this.last.get(rank) ?? -1);
		if (!near) return null;
		this.last.set(rank, row.at);
		row.ranks.add(rank);
		return row;
	}

	add({ rank, stream, gap, html }, node) {
		const row = { at: this.next++, ranks: new Set([rank]), node };
		this.last.set(rank, row.at);
		if (!gap) this.rows.set(`${stream} ${html}`, row);
		if (this.rows.size > 2 * FOLDS) for (const [key, { at }] of this.rows) if (at <= this.next - FOLDS) this.rows.delete(key);
	}
}

const ROWS = 1000; // lines on the page while scrolled up, unless earlier ones were requested,
const ROWS_LIVE = 100; // and lines while following: more would cost frames

/** Returns the name of the file with a rank's output, or the cell's. */
const file = (rank, stream) => (rank === null ? `job.${stream}` : `rank-${rank}.${stream}`);

class Output {
	stream = "both";
	needle = "";

	constructor(view) {
		this.view = view;
		this.lines = view.store.lines;
		const choose = () => this.choose();
		this.title = span("words");
		const streams = [["both", "stdout + stderr"], ["out", "stdout"], ["err", "stderr"]];
		this.streams = h("select.select", { label: "Stream", change: choose }, ...streams.map(option));
		this.filter = search("Filter output", choose);
		this.matches = span("quiet.matches");
		const follow = () => (this.kept ? this.refresh() : this.hold(false));
		this.follow = button("Follow", follow);
		this.copy = button("Copy", () => this.copyLines(), { label: "Copy output" });
		this.earlier = link("Earlier output", () => this.goBack());
		this.words = span("quiet");
		this.body = div("rows");
		const about = {
			...{ role: "log", label: "Output", "aria-live": "off", tabindex: 0 },
			scroll: () => this.scrolled(),
			wheel: ({ deltaY }) => deltaY < 0 && !this.kept && this.log.scrollTop > 0 && this.hold(true),
			selectstart: () => this.kept || this.hold(true), // or the selected lines would scroll away
		};
		this.log = h("div.log", about, div("top", this.earlier, this.words), this.body);
		this.path = button("Copy path", () => this.copied(this.path, this.path.title));
		const space = span("space");
		const head = div("bar-head", this.streams, this.filter, this.matches, space, this.follow, this.path, this.copy);
		this.node = folding(section("output", "Output", head, this.log), "output", this.title, head);
		this.refresh();
	}

	get rank() {
		return this.view.rank;
	}

	get chosen() {
		return this.stream === "both" ? ["out", "err"] : [this.stream];
	}

	/** Whether a line is shown. Gaps always are, because omitted lines might match. */
	matching = (line) => {
		if (!this.chosen.includes(line.stream)) return false;
		return !this.needle || line.gap || (line.low ??= textOf(line).toLowerCase()).includes(this.needle);
	};

	choose() {
		this.stream = this.streams.value;
		this.needle = this.filter.value.trim().toLowerCase();
		if (this.fetched) this.fill();
		else this.refresh();
	}

	/** Shows the newest lines and follows the output. */
	refresh() {
		this.kept = null; // the lines at the time when the page stopped following, or those from the record
		this.fetched = false; // whether they are from the record
		this.drawn = -1; // the newest line on the page
		this.folds = new Folds();
		this.clear = true;
		this.asked = null; // the number of the last request for earlier lines, while its answer is of interest
		this.answer = ""; // and its state in words
		this.view.changed("output");
	}

	/** The lines on the page while it does not follow. */
	get shown() {
		return this.kept.filter(this.matching).slice(this.fetched ? 0 : -ROWS);
	}

	draw() {
		const { rank, kept, chosen } = this;
		const { record } = this.view.store.about;
		const one = rank !== undefined;
		show(this.node, this.lines.next); // without lines there is nothing to control
		put(this.title, one ? `Output of rank ${rank}` : "Output");
		if (this.clear) {
			this.body.replaceChildren();
			mark(this.log, "data-full", null);
		}
		this.clear = false;
		if (!kept) this.append();
		// The log grows with its lines up to a fixed height; after that, new lines no longer move the page.
		if (!this.log.dataset.full && this.body.childNodes.length && this.log.scrollHeight > this.log.clientHeight) mark(this.log, "data-full", true);
		show(this.matches, this.needle);
		const all = kept ?? (one || this.needle ? this.lines.since(rank, -1, () => true, Infinity) : []);
		if (this.needle) put(this.matches, plural(all.filter((line) => !line.gap && this.matching(line)).length, "hit"));
		mark(this.log, "data-follow", !kept);
		mark(this.log, "data-scope", one ? "one" : "all");
		mark(this.follow, "aria-pressed", !kept);
		const total = this.lines.total(rank, chosen);
		const fresh = kept ? total - this.heldAt : 0;
		put(this.follow, joined("Follow", fresh > 0 && `${count(fresh)} new`));
		show(this.earlier, one && !this.fetched && total > this.body.childNodes.length);
		put(this.words, this.answer || this.counted(kept || this.needle ? all : null, total - fresh));
		show(this.path, record);
		this.path.title = one ? `${record}/${file(rank, this.stream === "err" ? "err" : "out")}` : record;
		// Last, because it makes the browser lay out the page.
		if (!kept) this.log.scrollTop = 1e9;
	}

	/** Describes how many of all lines are shown or were searched. */
	counted(lines, total) {
		if (!lines) return "";
		const from = this.needle ? lines.filter(({ stream }) => this.chosen.includes(stream)) : this.shown;
		const here = from.filter(({ gap }) => !gap).length;
		if (here >= total) return this.needle || this.rank === undefined ? "" : "This is the start of the output.";
		return `${count(here)} of ${plural(total, "line")}${this.needle ? " searched" : ""}.${this.fetched ? " See the log file for all." : ""}`;
	}

	append() {
		const fresh = this.lines.since(this.rank, this.drawn, this.matching, ROWS_LIVE);
		this.drawn = this.lines.next - 1;
		if (fresh.length === ROWS_LIVE) {
			this.body.replaceChildren();
			this.folds = new Folds();
		}
		this.body.append(...this.rowsOf(fresh, this.folds));
		while (this.body.childNodes.length > ROWS_LIVE) this.body.firstChild.remove();
	}

	/** Returns new rows for lines. If all ranks are shown, equal lines share a row. */
	rowsOf(lines, folds) {
		if (this.rank !== undefined) return lines.map((line) => this.row(line));
		const nodes = [];
		for (const line of lines) {
			const row = folds.join(line);
			if (row?.node.isConnected || nodes.includes(row?.node)) {
				put(row.node.firstChild, spans(row.ranks));
				mark(row.node, "data-rank", [...row.ranks].join(" "));
			} else {
				const node = this.row(line);
				folds.add(line, node);
				nodes.push(node);
			}
		}
		return nodes;
	}

	row(line) {
		const { rank, stream, gap, html } = line;
		const tag = span("tag", rank ?? "cell");
		const words = span("text");
		if (gap) words.append(`… ${plural(gap, "line")} not shown, in ${file(rank, stream)}`);
		else words.innerHTML = html;
		const err = stream === "err" ? h("span.err", { title: "stderr" }, "err") : "";
		const node = h(gap ? "div.row.gap" : "div.row", { "data-rank": rank ?? "job", "data-stream": stream }, tag, err, words);
		node.xnLine = line; // its first line
		return node;
	}

	scrolled() {
		const { scrollTop, scrollHeight, clientHeight } = this.log;
		const below = scrollHeight - scrollTop - clientHeight;
		const up = scrollTop < this.scrollTop;
		this.scrollTop = scrollTop;
		if (!this.kept && up && below > 24) this.hold(true);
		else if (this.kept && up && scrollTop < 40 && !this.earlier.hidden && !this.answer) this.goBack();
		else if (this.kept && !up && below < 2 && this.auto) this.refresh();
	}

	/** Stops following; with `auto`, until the user scrolls to the end. */
	hold(auto) {
		this.auto = auto;
		this.heldAt = this.lines.total(this.rank, this.chosen);
		this.kept = this.lines.since(this.rank, -1, ({ id }) => id <= this.drawn, Infinity);
		const first = this.body.firstChild?.xnLine.id ?? Infinity;
		// Keep existing rows, because a selection may start in one.
		this.stay(() => this.body.prepend(...this.rowsOf(this.shown.filter(({ id }) => id < first), new Folds())));
	}

	/** Changes the rows while keeping those at the end in place. */
	stay(change) {
		const below = this.log.scrollHeight - this.log.scrollTop;
		change();
		this.log.scrollTop = this.scrollTop = this.log.scrollHeight - below;
		this.view.changed("output");
	}

	/** Requests the newest lines of the selected rank from its record. */
	goBack() {
		if (!this.kept) this.hold(false);
		this.answer = "Fetching…";
		const silent = () => {
			this.answer = "No answer yet. The log file has all output.";
			this.view.changed("output");
		};
		this.asked = this.view.store.ask({ type: "earlier", rank: this.rank }, { silent });
		this.view.changed("output");
	}

	/** Shows lines from the record. */
	take({ request, lines }) {
		if (request !== this.asked) return; // too late: the view has changed
		this.fetched = true;
		this.answer = "";
		this.kept = lines.map(([stream, html]) => this.lines.line(this.rank, stream, html));
		this.fill();
	}

	fill() {
		this.heldAt = this.lines.total(this.rank, this.chosen);
		this.stay(() => this.body.replaceChildren(...this.rowsOf(this.shown, new Folds())));
	}

	copyLines() {
		const rows = this.rows ?? this.lines.since(this.rank, -1, this.matching, ROWS);
		const lines = rows.filter(({ gap }) => !gap);
		const tag = (rank) => (this.rank === undefined ? `[${rank ?? "cell"}] ` : "");
		const text = lines.map((line) => tag(line.rank) + textOf(line)).join("\n");
		this.copied(this.copy, text, ` ${plural(lines.length, "line")}`);
	}

	copied(node, text, what = "") {
		copy(text);
		node.xnLabel ??= node.textContent;
		put(node, `Copied${what}`);
		setTimeout(() => put(node, node.xnLabel), 1500);
	}
}

// --- A view of a run: parts that each have a node and draw the data in the store.
//
// Views draw changes in the next frame and only while visible, because a page that draws for each
// message falls behind.

class View {
	rank = undefined; // the rank whose output is shown; by default all ranks
	inSight = true;
	frame = 0;

	constructor(store, el) {
		this.store = store;
		this.dirty = new Set(); // parts to draw
		this.log = false; // whether the axes of charts are logarithmic
		this.root = h("div.panel", {
			role: "region",
			label: `Run ${store.run}`,
			keydown: (event) => this.key(event),
			click: ({ target }) => this.follow(target.closest("[role=link]")),
		});
		this.parts = {
			head: new Head(this),
			errors: errors(this),
			ranks: new Ranks(this),
			stacks: new Stacks(this),
			cells: cells(this),
			figures: new Figures(this),
			output: new Output(this),
		};
		// Hides the snapshot below (view.py), which is for pages without a live panel.
		const covers = h("style", {}, `.xn-saved-${CSS.escape(store.run)} { display: none }`);
		this.root.append(covers, ...Object.values(this.parts).map((part) => part.node));
		this.root.xnView = this; // for tests
		// Keys pressed here are not for the notebook, except shortcuts such as Ctrl+S.
		this.shield = ({ ctrlKey, metaKey }) => this.root.toggleAttribute("data-lm-suppress-shortcuts", !ctrlKey && !metaKey);
		addEventListener("keydown", this.shield, true);
		this.wake = () => this.tick(); // otherwise it would show the time when it was last visible
		this.watch = new IntersectionObserver((entries) => {
			this.inSight = entries.at(-1).isIntersecting;
			this.wake();
		});
		this.watch.observe(this.root);
		document.addEventListener("visibilitychange", this.wake);
		this.clock = setInterval(() => this.tick(), 1000);
		store.views.add(this);
		el.append(this.root);
		this.shade();
		this.changed(...Object.keys(this.parts));
	}

	close() {
		this.store.views.delete(this);
		this.watch.disconnect();
		document.removeEventListener("visibilitychange", this.wake);
		removeEventListener("keydown", this.shield, true);
		this.parts.figures.close();
		clearInterval(this.clock);
		cancelAnimationFrame(this.frame);
		this.root.remove();
	}

	/** Draws these parts in the next frame; a hidden document has no frames. */
	changed(...parts) {
		for (const part of parts) this.dirty.add(part);
		this.schedule();
	}

	schedule() {
		if (!this.frame && this.dirty.size && this.inSight) this.frame = requestAnimationFrame((now) => this.flush(now));
	}

	flush(now) {
		this.frame = 0;
		if (!this.inSight) return;
		mark(this.root, "data-new", this.parts.head.isNew || null); // first, because hidden nodes have no width
		for (const name in this.parts) if (this.dirty.delete(name)) this.parts[name].draw(now);
	}

	tick() {
		if (!this.inSight) return;
		this.shade();
		for (const node of this.root.querySelectorAll("[data-since]")) tick(node, this.store);
		this.changed("head"); // its text may depend on the time
	}

	/** Shows the line of the notebook that a link names. */
	follow(link) {
		if (link) reveal(link, this);
	}

	/** Disables input boxes beside the panel. */
	mute() {
		this.root.closest(".jp-OutputArea")?.querySelectorAll(".jp-Stdin-input").forEach((box) => Object.assign(box, { disabled: true, placeholder: "no longer needed" }));
	}

	/** Detects a dark background and changed colors, because front ends mark themes in different ways. */
	shade() {
		let light = 255;
		for (let node = this.root.parentElement; node; node = node.parentElement) {
			const [red, green, blue, alpha = 1] = getComputedStyle(node).backgroundColor.match(/[\d.]+/g)?.map(Number) ?? [];
			if (blue === undefined || alpha < 0.5) continue;
			light = 0.299 * red + 0.587 * green + 0.114 * blue;
			break;
		}
		mark(this.root, "data-dark", light < 128);
		const style = getComputedStyle(this.root);
		this.inks = style.getPropertyValue("--xn-text");
		if ([...this.parts.figures.charts.values()].some(({ inks }) => inks !== this.inks)) this.changed("figures");
	}

	key(event) {
		if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
		if (event.key === "Enter") this.follow(event.target.closest("[role=link]"));
		if (event.key !== "Escape") return;
		const { target } = event;
		if (target.type === "search" && target.value) {
			target.value = "";
			target.dispatchEvent(new Event("input"));
		} else if (this.rank !== undefined) this.focus(undefined);
		else return;
		event.preventDefault();
	}

	/** Shows the output of one rank, or of all ranks. */
	focus(rank) {
		if (rank !== this.rank) {
			this.rank = rank;
			this.store.focus();
		}
		this.parts.output.refresh();
		this.changed("ranks", "figures");
	}
}

/** Shows the end in place of the saved snapshot, on pages that were reloaded: only those still have it. */
const stay = (model) =>
	document.querySelectorAll(`.xn-saved-${CSS.escape(model.get("run"))}`).forEach((node) => (node.innerHTML = model.get("end")));

// anywidget calls this once per model, so the model's views share a store.
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
			// On other pages, the cell's output has been replaced by this time, and this view with it.
			const end = () => setTimeout(() => view.root.isConnected && (view.close(), stay(model)), 1000);
			model.on("change:end", end);
			return () => (model.off("change:end", end), view.close());
		},
	};
};
