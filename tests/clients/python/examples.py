"""Takes the examples apart for tests/clients/tests/examples.rs: checks that their parts fit together and writes the commands in them
to DIRECTORY, one shell script each. Exit status 77: this Python has no yaml.

    examples.py SOURCE DIRECTORY
"""

import json
import pathlib
import re
import shlex
import sys

try:
    import yaml
except ImportError:
    sys.exit(77)

PACKAGE = "target/package/vervain-*-x86_64-linux.tar.gz"


def script_of(step, variables):
    exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in variables.items())
    return f"# {step['name']}\n{exports}{step['run']}"


def action(text, given):
    """The one step of the action, with the inputs that a workflow gives, where it is checked out in `vervain`."""
    document = yaml.safe_load(text)
    inputs = {name: about["default"] for name, about in document["inputs"].items()}
    assert set(given) <= set(inputs), given
    inputs |= given
    (step,) = document["runs"]["steps"]
    # An action of the workspace belongs to no repository.
    known = {f"inputs.{name}": value for name, value in inputs.items()} | {"github.action_repository": ""}
    variables = {name: re.sub(r"\$\{\{ (.*?) \}\}", lambda found: known[found[1]], value) for name, value in step["env"].items()}
    assert "${{" not in step["run"], step
    return f"{script_of(step, variables)}\n".replace("$GITHUB_ACTION_PATH", "$PWD/vervain")


def workflow(text, source, out):
    """Steps of the one job, in order, with their own variables in front."""
    document = yaml.safe_load(text)
    # YAML 1.1 takes the key `on` for a truth value.
    assert {"name", True, "jobs"} == set(document), document.keys()
    (job,) = document["jobs"].values()
    (kept,) = [step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/cache@")]
    assert "hashFiles('vervain/crates/**', 'vervain/Cargo.lock')" in kept["key"], kept
    assert kept["path"] == f"vervain/{pathlib.Path(PACKAGE).parent}", kept
    used = 0
    for number, step in enumerate(job["steps"]):
        assert ("uses" in step) != ("run" in step), step
        script = out / f"step-{number:02}.sh"
        if "run" in step:
            script.write_text(script_of(step, step.get("env", {})))
        elif step["uses"] == "./vervain":
            assert step["with"]["package"] == f"vervain/{PACKAGE}", step
            script.write_text(action((source / "action.yml").read_text(), step["with"]))
            used += 1
    assert used == 1, used


def pipeline(text, out):
    """The script of the job that tests, as a runner of GitLab's has it: what is before it in the same shell."""
    document = yaml.safe_load(text)
    package, test = document["package"], document["rdma"]
    assert test["needs"] == ["package"], test
    assert set(package["artifacts"]["paths"]) == set(package["cache"]["paths"]) == {"vervain/target/package", "vervain/examples"}
    assert any(f"-xzf vervain/{PACKAGE}" in line for line in test["before_script"]), test
    (out / "gitlab.sh").write_text("\n".join(test["before_script"] + test["script"]))


def pods(text, out):
    """The commands of each pod's containers. What is mounted must be a volume, and filled by the init container; the namespace
    refuses pods with privileges."""
    documents = [d for d in yaml.safe_load_all(text) if d]
    of_kind = {d["kind"]: d for d in documents}
    namespace, service = of_kind["Namespace"]["metadata"], of_kind["Service"]
    assert namespace["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}, namespace
    for document in documents:
        assert document["apiVersion"] and document["metadata"]["name"], document
        if document["kind"] == "Namespace":
            continue
        assert document["metadata"]["namespace"] == namespace["name"], document
        if document["kind"] == "Service":
            continue
        spec = document["spec"]["template"]["spec"] if document["kind"] == "Job" else document["spec"]
        # What the standard asks of a pod (https://kubernetes.io/docs/concepts/security/pod-security-standards/).
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 1000, spec
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, spec
        assert all(set(volume) == {"name", "emptyDir"} for volume in spec["volumes"]), spec
        volumes = {v["name"] for v in spec["volumes"]}
        (init,), (own,) = spec["initContainers"], spec["containers"]
        for container in (init, own):
            assert container["image"] and {m["name"] for m in container["volumeMounts"]} == volumes, container
            security = container["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]} and not security["allowPrivilegeEscalation"], container
            assert security["readOnlyRootFilesystem"], container
        target = init["volumeMounts"][0]["mountPath"]
        assert init["command"][:1] == ["cp"] and init["command"][-1] == target, init
        assert own["command"][:2] == [f"{own['volumeMounts'][0]['mountPath']}/bin/vervain", "run"], own
        name = document["metadata"]["name"]
        if document["kind"] == "Pod":
            # The name that the client connects to.
            assert service["metadata"]["name"] == name and service["spec"]["clusterIP"] == "None", service
            labels = document["metadata"]["labels"].items()
            assert service["spec"]["selector"].items() <= labels, service
        for part, container in (("init", init), ("own", own)):
            (out / f"{name}-{part}.sh").write_text(shlex.join(container["command"]))


def container(text, out):
    """The variables of the container for development, one a line."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
    document = json.loads("\n".join(lines))
    assert document["image"] == "vervain:local", document
    (out / "variables").write_text("".join(f"{name}={value}\n" for name, value in document["remoteEnv"].items()))
    packages = re.search(r"apt-get install (.*)", document["onCreateCommand"])[1].split()
    (out / "packages").write_text("\n".join(package for package in packages if not package.startswith("-")))


def main():
    source, out = map(pathlib.Path, sys.argv[1:])
    examples = source / "examples"
    workflow((examples / "github-actions.yml").read_text(), source, out)
    pipeline((examples / "gitlab-ci.yml").read_text(), out)
    pods((examples / "kubernetes.yaml").read_text(), out)
    container((examples / "devcontainer.json").read_text(), out)


main()
