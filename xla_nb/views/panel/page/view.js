// A view of a run: parts that each have a node and draw what the store holds.
//
// Views draw what changed, in the next frame and only while visible: a page that draws for each
// message falls behind. A part's `draw` returns true to be called in the frame after that, too.

class View {
	rank = undefined; // whose output is shown, by default that of all
	inSight = true;
	frame = 0;

	constructor(store, el) {
		this.store = store;
		this.dirty = new Set();
		this.charting = { log: false, time: false, each: false, memory: false, smooth: 0 };
		this.root = h("div.panel", {
			role: "region",
			label: `Run ${store.run}`,
			"data-lm-suppress-shortcuts": "true", // keys in here are not the notebook's
			keydown: (event) => this.key(event),
			click: ({ target }) => this.follow(target.closest("[role=link]")),
		});
		this.parts = {
			head: new Head(this),
			errors: errors(this),
			ranks: new Ranks(this),
			stacks: new Stacks(this),
			cells: cells(this),
			variables: new Variables(this),
			figures: new Figures(this),
			output: new Output(this),
		};
		// The snapshot below it (view.py) is for pages on which no panel is alive.
		const covers = h("style", {}, `.xn-saved-${CSS.escape(store.run)} { display: none }`);
		this.root.append(covers, ...Object.values(this.parts).map((part) => part.node));
		this.root.xnView = this; // for tests
		this.wake = () => this.schedule();
		this.watch = new IntersectionObserver((entries) => {
			this.inSight = entries.at(-1).isIntersecting;
			this.wake();
		});
		this.watch.observe(this.root);
		this.clock = setInterval(() => this.tick(), 1000);
		store.views.add(this);
		el.append(this.root);
		this.shade();
		this.changed(...Object.keys(this.parts));
	}

	close() {
		this.store.views.delete(this);
		this.watch.disconnect();
		this.parts.figures.close();
		clearInterval(this.clock);
		cancelAnimationFrame(this.frame);
		this.root.remove();
	}

	/** Draws these parts in the next frame, which a hidden document has none of. */
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
		mark(this.root, "data-new", this.parts.head.isNew || null); // first: what is hidden has no width
		for (const name in this.parts) {
			const part = this.parts[name];
			if (this.dirty.delete(name) && part.draw(now)) this.dirty.add(name);
		}
		this.schedule();
	}

	tick() {
		if (!this.inSight) return;
		this.shade();
		for (const node of this.root.querySelectorAll("[data-since]")) tick(node, this.store);
		this.changed("head"); // which may have something to say by now
	}

	/** Shows the line of the notebook that a link names. */
	follow(link) {
		if (link) reveal(link, this);
	}

	/** Lets nobody answer what is asked beside the panel. */
	mute() {
		this.root.closest(".jp-OutputArea")?.querySelectorAll(".jp-Stdin-input").forEach((box) => Object.assign(box, { disabled: true, placeholder: "over" }));
	}

	/** Sees whether the background is dark: front ends mark themes in many ways. */
	shade() {
		let light = 255;
		for (let node = this.root.parentElement; node; node = node.parentElement) {
			const [red, green, blue, alpha = 1] = getComputedStyle(node).backgroundColor.match(/[\d.]+/g)?.map(Number) ?? [];
			if (blue === undefined || alpha < 0.5) continue;
			light = 0.299 * red + 0.587 * green + 0.114 * blue;
			break;
		}
		mark(this.root, "data-dark", light < 128);
	}

	key(event) {
		event.stopPropagation();
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

	/** Shows the output of one rank, or of all. */
	focus(rank, reveal = false) {
		if (rank !== this.rank) {
			this.rank = rank;
			this.store.focus();
		}
		this.parts.output.refresh();
		this.changed("ranks", "figures");
		if (reveal) this.parts.output.node.scrollIntoView({ block: "nearest" });
	}
}
