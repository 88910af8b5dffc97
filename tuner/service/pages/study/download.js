// Save files that the server makes.

import { ofStudy, query, raw } from "../api.js";
import { el } from "../dom.js";
import { say } from "../messages.js";

/** Save the export of a study's winner, or of a trial; some formats have two files. */
export async function download(id, format, trial = null) {
  const answer = await raw(ofStudy(id, `/export${query({ format, trial })}`));
  if (answer.headers.get("Content-Type").startsWith("application/json")) {
    const files = Object.entries(await answer.json());
    for (const [name, content] of files) save(name, content);
    say(`Saved ${files.map(([name]) => name).join(" and ")}.`);
    return;
  }
  const name = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition") ?? "")?.[1] ?? `${id}-${format}.txt`;
  save(name, await answer.text());
  say(`Saved ${name}.`);
}

function save(name, content) {
  const address = URL.createObjectURL(new Blob([content], { type: "text/plain" }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
