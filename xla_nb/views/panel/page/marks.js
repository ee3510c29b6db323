// What a filter finds, marked in lines of output: a match may span pieces of other colors.

const NAME = "xn-match";

class Marks {
	drawn = "";

	constructor() {
		// Some browsers have none: there lines are found, and not marked.
		if (globalThis.Highlight && !CSS.highlights.has(NAME)) CSS.highlights.set(NAME, new Highlight());
		this.all = globalThis.CSS?.highlights?.get(NAME);
		this.own = [];
	}

	draw(body, needle) {
		const drawn = needle && `${needle} ${body.firstChild?.xnId} ${body.lastChild?.xnId}`;
		if (!this.all || drawn === this.drawn) return;
		this.drawn = drawn;
		for (const range of this.own) this.all.delete(range);
		this.own = needle ? [...body.querySelectorAll(".xn-text")].flatMap((words) => found(words, needle)) : [];
		for (const range of this.own) this.all.add(range);
	}
}

function found(words, needle) {
	const text = words.textContent.toLowerCase();
	const ranges = [];
	for (let at = text.indexOf(needle); at >= 0; at = text.indexOf(needle, at + needle.length)) {
		const range = document.createRange();
		range.setStart(...placeOf(words, at));
		range.setEnd(...placeOf(words, at + needle.length));
		ranges.push(range);
	}
	return ranges;
}

/** The text node of a character, and where it is in it. */
function placeOf(words, at) {
	const walker = document.createTreeWalker(words, NodeFilter.SHOW_TEXT);
	let node = walker.nextNode();
	while (at > node.length) {
		at -= node.length;
		node = walker.nextNode();
	}
	return [node, at];
}
