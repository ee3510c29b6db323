// All charts, and the choices of how they are drawn.

class Figures {
	charts = new Map();
	grid = div("figures-grid");
	plots = [];
	queue = []; // charts to draw, one in each frame

	constructor(view) {
		this.view = view;
		const { charting } = view;
		const redraw = () => view.redraw("figures");
		const choice = (text, key, title) => {
			const flip = ({ currentTarget }) => {
				charting[key] = !charting[key];
				mark(currentTarget, "aria-pressed", charting[key]);
				redraw();
			};
			return button(text, flip, { "aria-pressed": false, title }, "choice");
		};
		this.each = choice("each rank", "each", "A line for each rank");
		this.own = [choice("log", "log", "Logarithmic axis"), choice("time", "time", "Seconds instead of steps"), this.each];
		this.memory = choice("memory", "memory", "Memory of each process");
		this.buttons = [...this.own, this.memory];
		this.smooth = h("select.select", { label: "Smoothing", change: () => ((charting.smooth = Number(this.smooth.value)), redraw()) },
			...[[0, "not smoothed"], [0.6, "smoothed"], [0.9, "very smooth"]].map(option));
		const head = div("bar-head", span("space"), toolbar("Charts", ...this.buttons), this.smooth);
		this.node = folding(section("figures", "Figures", head, this.grid), "figures", "Figures", head);
		this.resized = new ResizeObserver(redraw);
		this.resized.observe(this.grid);
		this.grid.addEventListener("focusin", () => oneStop(this.plots));
		this.grid.addEventListener("keydown", walk(() => this.plots, "ArrowUp", "ArrowDown"));
	}

	get every() {
		return this.view.store.cards.size > 32 ? 500 : 150;
	}

	draw() {
		const { figures, memory } = this.view.store;
		const all = new Map([...figures].map(([name, lines]) => [`figure ${name}`, [name, lines]]));
		if (this.view.charting.memory && memory.size) all.set("memory", ["memory, MiB", memory]);
		show(this.node, all.size || memory.size);
		// Without any figure there is only the memory to be charted.
		for (const node of [...this.own, this.smooth]) show(node, figures.size);
		show(this.each, [...figures.values()].some(({ size }) => size > PAIR && size <= EACH));
		show(this.memory, memory.size);
		oneStop(this.buttons);
		mark(this.node, "data-empty", all.size ? null : true);
		const keys = [...all.keys()];
		const chart = (key) => held(this.charts, key, () => new Chart(this.view, all.get(key)[0], key === "memory"));
		fill(this.grid, JSON.stringify(keys), () => {
			this.plots = keys.map((key) => chart(key).svg);
			oneStop(this.plots);
			return keys.map((key) => chart(key).node);
		});
		if (!this.queue.length) this.queue = keys;
		const key = this.queue.shift();
		if (all.has(key)) chart(key).draw(all.get(key)[1]);
		return this.queue.length > 0;
	}
}
