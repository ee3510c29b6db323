// All ranks: found, walked through by keys, one of them chosen.

const MOVES = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: "up", ArrowDown: "down", Home: "home", End: "end" };
const FEW = 8; // ranks that need no search

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
		this.none = div("quiet"); // that no rank is found
		this.facts = div("facts");
		const close = link("Close", () => view.focus(undefined));
		this.detail = h("div.detail", { role: "group", label: "The chosen rank" }, this.facts, close);
		const head = div("bar-head", this.counts, this.finder);
		const node = section("ranks", "All ranks", head, this.grid, this.none, this.detail);
		this.node = folding(node, "ranks", this.title, head);
	}

	get nodes() {
		return [...this.grid.querySelectorAll("[data-rank]")];
	}

	draw() {
		const { view } = this;
		const { cards, about, parts, frozen } = view.store;
		show(this.node, cards.size);
		put(this.title, plural(cards.size, about.unit));
		place(this.counts, frozen === null ? parts.counts : "", view);
		place(this.grid, parts.ranks, view);
		for (const node of this.nodes) mark(node, "aria-selected", node.dataset.rank === String(view.rank));
		this.find();
		this.rove(this.nodes.find(({ tabIndex, hidden }) => !tabIndex && !hidden) ?? this.nodes[0]);
		const told = view.rank !== undefined && about.focus === view.rank ? parts.detail : "";
		show(this.detail, told);
		place(this.facts, told, view);
		if (told && this.revealing) this.detail.scrollIntoView({ block: "nearest" }); // below many tiles
		this.revealing &&= !told;
	}

	/** Hides ranks, and hosts without any, that do not match the search. */
	find() {
		const { needle } = this;
		const { cards, about: { unit } } = this.view.store;
		show(this.finder, cards.size > FEW);
		const number = needle.match(/^(?:rank |device )?(\d+)$/)?.[1];
		const has = (node) => `${node.title} ${node.textContent}`.toLowerCase().includes(needle);
		for (const host of this.grid.querySelectorAll(".xn-host")) {
			const ranks = [...host.querySelectorAll("[data-rank]")];
			const whole = !number && host.ariaLabel?.toLowerCase().includes(needle);
			for (const node of ranks) show(node, number ? node.dataset.rank === number : whole || has(node));
			show(host, whole || !needle || ranks.some(({ hidden }) => !hidden));
		}
		const none = needle && this.nodes.every(({ hidden }) => hidden);
		show(this.none, none);
		put(this.none, number ? `There is no ${unit} ${number}; there are ${unit}s ${spans(cards.keys())}.` : `No ${unit} matches “${needle}”.`);
	}

	/** Moves the one tab stop of the ranks. */
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
