"""Takes the examples apart for tests/clients/tests/examples.rs: checks that their parts fit together and writes the commands in them
to DIRECTORY, one shell script each. Exit status 77: this Python has no yaml.

    examples.py EXAMPLES DIRECTORY
"""

import pathlib
import shlex
import sys

try:
    import yaml
except ImportError:
    sys.exit(77)


def workflow(text, out):
    """Steps of the one job, in order, with their own variables in front."""
    document = yaml.safe_load(text)
    # YAML 1.1 takes the key `on` for a truth value.
    assert {"name", True, "jobs"} == set(document), document.keys()
    (job,) = document["jobs"].values()
    (key,) = [step["with"]["key"] for step in job["steps"] if step.get("uses", "").startswith("actions/cache@")]
    assert "hashFiles('vervain/Cargo.lock')" in key, key
    for number, step in enumerate(job["steps"]):
        assert ("uses" in step) != ("run" in step), step
        if "run" in step:
            env = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in step.get("env", {}).items())
            (out / f"step-{number:02}.sh").write_text(f"# {step['name']}\n{env}{step['run']}")


def pods(text, out):
    """The command of each pod's own container. What is mounted must be a volume, and filled by the init container."""
    documents = [d for d in yaml.safe_load_all(text) if d]
    (service,) = [d for d in documents if d["kind"] == "Service"]
    for document in documents:
        assert document["apiVersion"] and document["metadata"]["name"], document
        if document["kind"] == "Service":
            continue
        spec = document["spec"]["template"]["spec"] if document["kind"] == "Job" else document["spec"]
        volumes = {v["name"] for v in spec["volumes"]}
        (init,), (own,) = spec["initContainers"], spec["containers"]
        for container in (init, own):
            assert container["image"] and {m["name"] for m in container["volumeMounts"]} == volumes, container
        target = init["volumeMounts"][0]["mountPath"]
        assert init["command"][:1] == ["cp"] and init["command"][-1] == target, init
        shell, option, script = own["command"]
        assert (shell, option) == ("sh", "-ec") and f"{own['volumeMounts'][0]['mountPath']}/bin/vervain run" in script, own
        name = document["metadata"]["name"]
        if document["kind"] == "Pod":
            # The name that the client connects to.
            assert service["metadata"]["name"] == name and service["spec"]["clusterIP"] == "None", service
            labels = document["metadata"]["labels"].items()
            assert service["spec"]["selector"].items() <= labels, service
        (out / f"{name}.sh").write_text(script)


def main():
    examples, out = map(pathlib.Path, sys.argv[1:])
    workflow((examples / "github-actions.yml").read_text(), out)
    pods((examples / "kubernetes.yaml").read_text(), out)


main()
