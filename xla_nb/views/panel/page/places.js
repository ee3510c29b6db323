// Links from a place of the notebook to its cell and line.

import { h } from "./nodes.js";

/** A place of the notebook, as a link where the page has the notebook. `more`: its attributes. */
export function placed(place, view, words = place, more = {}) {
	const number = place.match(/^Cell In\[(\d+)\]/)?.[1];
	const notebook = view.root.closest?.(".jp-Notebook");
	if (!number || !notebook) return words;
	const line = Number(place.match(/, line (\d+)/)?.[1] ?? 1);
	const click = (event) => {
		event.stopPropagation();
		reveal(view, number, line);
	};
	return h("button.link", { type: "button", title: `Go to ${place}`, click, ...more }, words);
}

/** Shows a line of a cell. The editor is CodeMirror's, whose view its nodes know. */
function reveal(view, number, line) {
	const own = view.root.closest(".jp-Cell");
	const prompt = (cell) => cell.querySelector(".jp-InputPrompt")?.textContent ?? "";
	const isIt = (cell) => prompt(cell).includes(`[${number}]`) || (cell === own && view.store.about.cell === `Cell In[${number}]`);
	const cell = [...view.root.closest(".jp-Notebook").querySelectorAll(".jp-CodeCell")].find(isIt);
	if (!cell) return view.store.speak(`Cell In[${number}] is no longer in this notebook.`);
	const content = cell.querySelector(".cm-content");
	const editor = content?.cmTile?.view ?? content?.cmView?.view;
	const found = editor && line <= editor.state.doc.lines ? editor.state.doc.line(line) : null;
	if (found) {
		editor.focus();
		editor.dispatch({ selection: { anchor: found.from, head: found.to } });
	}
	const row = found && editor.domAtPos(found.from).node;
	const at = (row?.nodeType === 1 ? row : row?.parentElement)?.closest(".cm-line") ?? content ?? cell;
	at.scrollIntoView({ block: "center" });
}
