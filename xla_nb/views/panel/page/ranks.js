// All ranks: by host, in order, found, walked through by keys, one of them chosen.

import { held, plain } from "./values.js";
import { factOf } from "./messages.js";
import { joined, kinds, KINDS, plural, spans } from "./words.js";
import { arrange, button, div, fill, glyph, h, mark, put, search, section, show, span } from "./nodes.js";
import { folding } from "./folding.js";
import { toolbar } from "./toolbar.js";
import { tally } from "./gauges.js";
import { Row, Tile } from "./rows.js";
import { Detail } from "./details.js";

/** How urgent a rank is. Short waits do not count, or ranks would jump at every step. */
function urgency({ phase, since }, now) {
	const first = ["early", "failed", "died"].indexOf(phase);
	if (first >= 0) return first;
	return phase === "waiting" && since !== null && now - since > 5 ? 3 : 4;
}

/** The ranks of one host under its name, or all ranks if the run has no hosts. */
class Host {
	lost = span("lost");
	counts = h("ul.counts", { label: "Ranks by phase" });
	cards = div("cards");

	constructor(name) {
		this.head = div("host-head", glyph(), h("strong", {}, name), this.lost, this.counts);
		this.node = h("div.host", { role: "group", label: name || null }, this.head, this.cards);
	}

	set(ranks, counted, why) {
		mark(this.node, "data-phase", why === undefined ? null : "died");
		put(this.lost, why === undefined ? "" : joined("lost", why));
		mark(this.cards, "data-ranks", ranks);
		tally(this.counts, counted);
	}
}

const MOVES = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: "up", ArrowDown: "down", Home: "home", End: "end" };

export class Ranks {
	boxes = new Map();
	hosts = new Map();
	groups = new Map(); // ranks by host, in order
	queue = []; // ranks to draw, a few in each frame
	needle = "";

	constructor(view) {
		this.view = view;
		this.title = span("words");
		this.counts = h("ul.counts", { label: "Ranks by phase" });
		const sort = (by) => button(`By ${by}`, () => this.sortBy(by), {}, "choice");
		this.sorts = { trouble: sort("trouble"), rank: sort("rank") };
		this.sorting = toolbar("Order of ranks", ...Object.values(this.sorts));
		const redraw = () => view.redraw("ranks");
		this.finder = search("Find ranks", () => {
			this.needle = this.finder.value.trim().toLowerCase();
			redraw();
		});
		const at = ({ target }) => {
			const box = target.closest?.("[role=option]");
			return box ? Number(box.dataset.rank) : undefined;
		};
		const hover = (rank) => {
			this.hovered = rank;
			redraw();
		};
		this.grid = h("div.grid", {
			role: "listbox",
			label: "Ranks",
			keydown: (event) => this.key(event),
			click: (event) => this.pick(at(event)),
			focusin: (event) => {
				this.rove(at(event));
				redraw();
			},
			focusout: redraw,
			pointerover: (event) => hover(at(event)),
			pointerleave: () => hover(),
		});
		this.detail = new Detail(view);
		this.names = Object.fromEntries(["lane", "step", "waits", "metric", "memory"].map((name) => [name, span(name)]));
		const who = div("who", this.counts);
		const head = div("columns", who, ...Object.values(this.names));
		this.none = div("quiet"); // that no rank is found
		this.once = div("key");
		this.tools = div("bar-head", this.sorting, this.finder);
		const node = section("ranks", "All ranks", head, this.tools, this.grid, this.none, this.once, this.detail.node);
		this.node = folding(node, "ranks", this.title, who);
	}

	get every() {
		return this.size === "dense" ? 200 : 100;
	}

	draw(now) {
		const { cards } = this.view.store;
		show(this.node, cards.size);
		if (!cards.size) return false;
		this.resize(cards.size);
		if (!this.queue.length) this.queue = [...cards.keys()].filter((rank) => this.boxes.get(rank)?.card !== cards.get(rank));
		const some = this.boxes.size < cards.size ? cards.size : 64;
		for (const rank of this.queue.splice(0, some)) if (cards.has(rank)) this.fill(cards.get(rank));
		if (this.queue.length) return true;
		const { diagnosis } = this.view.store.about;
		const marked = new Set(diagnosis?.level === "calm" ? [] : diagnosis?.ranks);
		for (const [rank, box] of this.boxes) {
			const { node } = box;
			box.time?.(box.card, this.view.store);
			mark(node, "aria-selected", rank === this.view.rank);
			mark(node, "data-marked", marked.has(rank) || null);
		}
		tally(this.counts, [...cards.values()]);
		this.head([...cards.values()]);
		this.sort(now);
		this.group();
		this.explain();
		return false;
	}

	/** Names the columns with something to say; says once what no rank differs in. */
	head(cards) {
		const { store } = this.view;
		const shared = store.about.unit === "device" && cards.length > 1;
		const [metric] = store.figures.keys();
		const first = (name) => (shared ? null : cards.map((card) => factOf(card, name)).find(Boolean));
		const words = {
			lane: store.lanes.size ? `last ${Math.floor(store.window[2]) || 1} s` : "",
			step: first("step")?.label ?? "",
			waits: first("waits") && cards.some(({ waits }) => waits >= 0.005) ? "waits" : "",
			metric: metric === undefined || shared ? "" : plain(metric),
			memory: first("memory")?.label ?? "",
		};
		for (const name in words) put(this.names[name], words[name]);
		mark(this.node, "data-columns", Object.keys(words).filter((name) => words[name]).join(" "));
		const parts = cards.map(({ bars }) => bars[0]?.part ?? 0);
		mark(this.node, "data-uneven", Math.max(...parts) - Math.min(...parts) > 0.02 || null);
		const lanes = this.size === "rows" ? [...store.lanes.values()].flatMap((lane) => [...lane.values()]) : [];
		const seen = kinds.filter((_, i) => lanes.some((parts) => parts[i] >= 0.05));
		const same = [shared && cards[0].from];
		for (const { id, label, value } of cards[0].facts) {
			const differs = cards.some(({ facts }) => !facts.some((fact) => fact.id === id && fact.value === value));
			const own = !shared && ["step", "waits", "steps", "memory", "cpu"].includes(id);
			if (cards.length > 1 && !differs && !own && !/^\S+ 1$/.test(value)) same.push(`${label} ${value}`);
		}
		same.push(store.about.free);
		const key = (kind) => span("kind", h("i", { "data-kind": kind }), KINDS[kind]);
		fill(this.once, String([seen, same]), () => [...seen.map(key), joined(...same)]);
	}

	resize(n) {
		put(this.title, plural(n, this.view.store.about.unit));
		show(this.tools, n > 8);
		const fits = n <= 32 ? "rows" : "dense";
		if (fits === this.size && this.boxes.size <= n) return;
		this.size = fits;
		if (!this.chosen) this.by = n > 8 ? "trouble" : "rank";
		mark(this.view.root, "data-size", fits);
		for (const map of [this.boxes, this.hosts, this.groups]) map.clear();
		this.grid.replaceChildren();
		this.queue = [];
	}

	fill(card) {
		const { rank, host, phase, place, detail, bars } = card;
		const box = held(this.boxes, rank, () => (this.size === "dense" ? new Tile() : new Row()));
		box.node ??= h(`div.rank.${this.size}`, { role: "option", tabindex: -1, "data-rank": rank }, ...box.children);
		box.card = card;
		const told = (name) => this.size === "rows" && factOf(card, name);
		const numbers = ["step", "waits"].map(told).map((fact) => fact && `${fact.label} ${fact.value}`);
		box.label = joined(`${this.view.store.about.unit} ${rank}`, phase, place, detail, ...numbers, factOf(card, "fallbacks")?.label, host);
		mark(box.node, "data-phase", phase);
		mark(box.node, "aria-label", box.label);
		box.node.style.backgroundSize = `${Math.round(100 * (bars[0]?.part ?? 0))}% 2px`;
		box.set(card, this.view.store, box.node, this.view);
	}

	/** Orders the ranks, unless the pointer or the keyboard is on one. */
	sort(now) {
		const { cards, about, now: clock } = this.view.store;
		const busy = this.hovered !== undefined || this.grid.contains(document.activeElement);
		const complete = this.order.length === this.boxes.size;
		if (complete && !this.resort && (busy || now - this.sorted < 500)) return;
		this.resort = false;
		this.sorted = now;
		for (const by in this.sorts) mark(this.sorts[by], "aria-pressed", by === this.by);
		const trouble = this.by === "trouble";
		const levels = new Map([...this.boxes.keys()].map((rank) => [rank, trouble ? urgency(cards.get(rank), clock) : 0]));
		const order = [...levels.keys()].sort((a, b) => levels.get(a) - levels.get(b) || a - b);
		// A host comes where its first rank does; a lost one may have none.
		this.groups = new Map(trouble ? [...about.lost.keys()].map((name) => [name, []]) : []);
		for (const rank of order) held(this.groups, cards.get(rank).host, () => []).push(rank);
		for (const [name, ranks] of this.groups) {
			const { cards } = held(this.hosts, name, () => new Host(name));
			arrange(cards, ranks.map((rank) => this.boxes.get(rank).node));
		}
		arrange(this.grid, [...this.groups.keys()].map((name) => this.hosts.get(name).node));
		this.grid.style.setProperty("--xn-each", Math.max(...[...this.groups.values()].map(({ length }) => length)));
		mark(this.grid, "data-hosts", this.groups.size);
		this.rove(this.boxes.has(this.active) ? this.active : this.order[0]);
	}

	get order() {
		return [...this.groups.values()].flat();
	}

	/** Labels each host, and hides what does not match the search. */
	group() {
		const { cards, about } = this.view.store;
		const matches = (text) => text.toLowerCase().includes(this.needle);
		const number = this.needle.match(/^(?:rank |device )?(\d+)$/)?.[1];
		for (const [rank, { node, label }] of this.boxes) show(node, number ? rank === Number(number) : matches(label));
		for (const [name, ranks] of this.groups) {
			const host = this.hosts.get(name);
			// Those of an only host are counted in the head.
			const counted = this.groups.size > 1 ? ranks.map((rank) => cards.get(rank)) : [];
			host.set(ranks.length, counted, about.lost.get(name));
			show(host.node, (!number && matches(name)) || ranks.some((rank) => !this.boxes.get(rank).node.hidden));
		}
		const { unit } = about;
		show(this.none, [...this.hosts.values()].every(({ node }) => node.hidden));
		put(this.none, number ? `There is no ${unit} ${number}; there are ${unit}s ${spans(this.boxes.keys())}.` : `No ${unit} matches “${this.needle}”.`);
	}

	sortBy(by) {
		this.by = by;
		this.chosen = true;
		this.resort = true;
		this.view.redraw("ranks");
	}

	/** Moves the one tab stop of the cards. */
	rove(rank) {
		if (rank === undefined) return;
		this.boxes.get(this.active)?.node.setAttribute("tabindex", "-1");
		this.boxes.get(rank)?.node.setAttribute("tabindex", "0");
		this.active = rank;
	}

	key(event) {
		if (event.ctrlKey || event.metaKey || event.altKey) return;
		if (event.key === "Enter" || event.key === " ") this.choose(this.active);
		else if (event.key in MOVES) this.go(MOVES[event.key]);
		else return;
		event.preventDefault();
	}

	go(move) {
		const nodes = this.order.map((rank) => this.boxes.get(rank).node).filter(({ hidden }) => !hidden);
		const here = this.boxes.get(this.active).node;
		const at = nodes.indexOf(here);
		const columns = getComputedStyle(here.parentNode).gridTemplateColumns.split(" ").length;
		const to = { up: at - columns, down: at + columns, home: 0, end: nodes.length - 1 }[move] ?? at + move;
		nodes[to]?.focus();
	}

	pick(rank) {
		if (rank === undefined || String(getSelection())) return;
		this.choose(rank === this.view.rank ? undefined : rank);
	}

	choose(rank) {
		this.revealing = rank !== undefined;
		this.view.focus(rank);
	}

	/** The details of the chosen rank; of tiles else of the one under the pointer. */
	explain() {
		const keyed = this.grid.contains(document.activeElement) ? this.active : undefined;
		const first = this.order.find((r) => !this.boxes.get(r).node.hidden);
		const others = this.size === "rows" ? [] : [this.hovered, keyed, first];
		const rank = [this.view.rank, ...others].find((r) => this.boxes.has(r));
		const card = this.view.store.cards.get(rank);
		show(this.detail.node, card);
		if (card) this.detail.set(card, this.view.store);
		if (this.revealing) this.detail.node.scrollIntoView({ block: "nearest" }); // below many tiles
		this.revealing = false;
	}
}
