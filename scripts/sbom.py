#!/usr/bin/env python3
"""sbom.py VERSION SECONDS < METADATA: the bill of materials of a release, as CycloneDX 1.6 in JSON.

METADATA is what `cargo metadata --format-version 1` prints, filtered for one platform. Listed are the crates that the
shipped ones are linked with, with versions, licences and the sums of Cargo.lock; not those of tests and benchmarks, and
not those that run in the compiler only. SECONDS since 1970 is the time that the bill bears. The same input gives the same
bytes.
"""

import json
import pathlib
import sys
import time
import uuid

# What cargo builds for `make install`: the crates that are in this folder.
SHIPPED = "crates"


def main():
    version, seconds = sys.argv[1], int(sys.argv[2])
    metadata = json.load(sys.stdin)
    root = pathlib.Path(metadata["workspace_root"])
    packages = {package["id"]: package for package in metadata["packages"]}
    macros = {crate for crate, package in packages.items() if any("proc-macro" in t["kind"] for t in package["targets"])}
    linked = {node["id"]: linked_with(node, macros) for node in metadata["resolve"]["nodes"]}
    own = {member for member in metadata["workspace_members"] if is_shipped(packages[member], root)}
    if not own:
        sys.exit(f"sbom.py: no crate of {root} is in its folder {SHIPPED}")

    reached, waiting = set(), sorted(own)
    while waiting:
        crate = waiting.pop()
        if crate not in reached:
            reached.add(crate)
            waiting.extend(linked[crate])
    sums = checksums(root / "Cargo.lock")
    others = [packages[crate] for crate in sorted(reached - set(metadata["workspace_members"]))]
    # Crates of this project are one component: they have its version, and nobody gets them apart.
    project = f"pkg:generic/vervain@{version}"
    depends = {project: set()}
    for crate in reached:
        of = depends.setdefault(reference(packages[crate], project), set())
        of.update(reference(packages[other], project) for other in linked[crate])
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)),
            "component": {
                "type": "application",
                "bom-ref": project,
                "name": "vervain",
                "version": version,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
                "purl": project,
            },
        },
        "components": [component(package, sums) for package in others],
        "dependencies": [{"ref": ref, "dependsOn": sorted(of - {ref})} for ref, of in sorted(depends.items())],
    }
    bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bill, sort_keys=True))}"
    json.dump(bill, sys.stdout, indent=1, sort_keys=True)
    print()


def is_shipped(package, root):
    return pathlib.Path(package["manifest_path"]).relative_to(root).parts[0] == SHIPPED


def linked_with(node, macros):
    """Ids of the crates that this one is linked with. Kinds other than null are `dev` and `build`."""
    of_program = [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    return [crate for crate in of_program if crate not in macros]


def reference(package, project):
    """How the bill names a crate; those without a source are the project's own."""
    return f"pkg:cargo/{package['name']}@{package['version']}" if package["source"] else project


def checksums(lock):
    """SHA-256 by name and version. Each field of Cargo.lock is a line."""
    sums, fields = {}, {}
    for line in lock.read_text().splitlines() + ["[[package]]"]:
        name, _, value = line.partition(" = ")
        if line == "[[package]]":
            if "checksum" in fields:
                sums[fields["name"], fields["version"]] = fields["checksum"]
            fields = {}
        elif name in ("name", "version", "checksum"):
            fields[name] = value.strip('"')
    return sums


def component(package, sums):
    found = {
        "type": "library",
        "bom-ref": reference(package, None),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package, None),
    }
    if package["license"]:
        # Before SPDX expressions, cargo took a slash for OR.
        found["licenses"] = [{"expression": package["license"].replace(" / ", "/").replace("/", " OR ")}]
    if (sum_ := sums.get((package["name"], package["version"]))):
        found["hashes"] = [{"alg": "SHA-256", "content": sum_}]
    if package["repository"]:
        found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return found


main()
