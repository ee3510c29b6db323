// Parts that the kernel has drawn (views/rendering/html.py), put into their places: what is the same
// stays, with the focus, the selection, open folds and a click that is under way.

const KEPT = new Set(["open", "hidden", "tabindex", "aria-selected"]); // the page's and the user's

/** Makes a node's content that of the HTML. */
function place(node, html, view) {
	if (node.xnHtml === html) return;
	node.xnHtml = html;
	const template = document.createElement("template");
	template.innerHTML = html;
	prepare(template.content, view);
	become(node, template.content);
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

/** Gives it what only a page can: links to lines of the notebook, ranks to be chosen, time that passes. */
function prepare(fragment, view) {
	const linked = view.root.closest(".jp-Notebook");
	for (const node of linked ? fragment.querySelectorAll("[data-cell]") : []) {
		node.setAttribute("role", "link");
		node.tabIndex = node.closest("[data-rank]") ? -1 : 0;
	}
	for (const node of fragment.querySelectorAll("[data-rank]")) {
		node.setAttribute("role", "option");
		node.tabIndex = -1;
		node.parentNode.setAttribute("role", "listbox");
		node.parentNode.setAttribute("aria-label", "Ranks");
	}
	for (const node of fragment.querySelectorAll("[data-share]")) {
		node.setAttribute("role", "progressbar");
		node.setAttribute("aria-label", node.title);
		node.setAttribute("aria-valuenow", node.dataset.share);
	}
	for (const node of fragment.querySelectorAll("[data-since]")) tick(node, view.store);
}

/** Tells how long something has gone on. */
function tick(node, { now }) {
	const words = duration(now - Number(node.dataset.since));
	if (node.textContent !== words) node.textContent = words;
}

/** Shows the line of a cell that a link names. The editor is CodeMirror's, whose view its nodes know. */
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
