// Files of a rank's output, and where JupyterLab has them.

const file = (rank, stream) => (rank === null ? `job.${stream}` : `rank-${rank}.${stream}`);

/** The folder that JupyterLab shows files of, and how it names it; null elsewhere. */
function served(path, home) {
	let root;
	try {
		root = JSON.parse(document.getElementById("jupyter-config-data").textContent).serverRoot;
	} catch {
		return null;
	}
	const folder = String(root).replace(/^~/, home).replace(/\/?$/, "/");
	const below = path.startsWith(folder) ? path.slice(folder.length) : "";
	return below && !below.split("/").some((part) => part.startsWith(".")) ? below : null;
}
