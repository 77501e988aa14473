/** Compiles the package with the repository's locked compiler, which it installs where `make setup` has not. */
import { execFileSync } from "node:child_process";
import { existsSync, symlinkSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = new URL("../../", import.meta.url);
const at = (path) => fileURLToPath(new URL(path, root));
const run = (program, ...words) => execFileSync(program, words, { stdio: ["ignore", "inherit", "inherit"] });

// The generated messages, which stand beside this folder, find their library only from the root.
if (!existsSync(at("node_modules"))) {
  if (!existsSync(at(".ci/toolchain/node_modules"))) run("npm", "ci", "--ignore-scripts", "--prefix", at(".ci/toolchain"));
  symlinkSync(at(".ci/toolchain/node_modules"), at("node_modules"), "junction");
}
run(process.execPath, at("node_modules/typescript/bin/tsc"), "--project", at("clients/ts"), "--noEmit", "false");
