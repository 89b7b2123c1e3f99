"""The job script, the manifests and the container file of `configs/examples` say what the command
line takes, and their shell does what they say.

The job script under a real Slurm is `system/test_slurm.py`.
"""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from dipaco.errors import NOT_NOW, DipacoError, MachineFault, RunOfOtherVersion
from dipaco.overrides import load_config
from dipaco.topology.cells import paths_in
from dipaco.workers.errors import TaskFailed
from tests.test_pages import commands_of, strict_parser

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "configs" / "examples"
JOB = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())
JOBS = {  # each file's jobs, by name
    "kubernetes.yaml": {"workers": JOB},
    **{
        name: {
            job["name"]: {"apiVersion": "batch/v1", "kind": "Job", **job["template"]}
            for job in yaml.safe_load((EXAMPLES / name).read_text())["spec"]["replicatedJobs"]
        }
        for name in ("jobset_tpu.yaml", "jobset_gpu.yaml")
    },
}
SKYPILOT = yaml.safe_load((EXAMPLES / "skypilot.yaml").read_text())
CELLS = list(yaml.safe_load_all((EXAMPLES / "cells.yaml").read_text()))
SLURM = (EXAMPLES / "slurm.sh").read_text()
CONTAINER = (EXAMPLES / "Containerfile").read_text()


def test_kubernetes_takes_every_manifest():
    """By the schema that Kubernetes publishes for its version 1.31, which has no JobSet: only the
    jobs of one are checked.
    """
    validate = pytest.importorskip("kubernetes_validate", reason="no extra `lint` here")
    for manifest in [*(job for jobs in JOBS.values() for job in jobs.values()), *CELLS]:
        validate.validate(manifest, "1.31", strict=True)


def container_of(file, job="workers"):
    (container,) = JOBS[file][job]["spec"]["template"]["spec"]["containers"]
    return container


SCRIPTS = {"slurm.sh": SLURM, **{file: container_of(file)["args"][0] for file in JOBS}}
PROGRAMS = {
    "dipaco": 'echo "$@" > {folder}/asked; trap "exit 0" TERM; kill -{signal} $PPID\n'
    "for _ in {{1..400}}; do sleep 0.05; done",
    "told": 'echo "$@" > {folder}/asked; exit {code}',
    "squeue": "echo {state}",
    "scontrol": 'echo "$@" > {folder}/requeued',
}
VARIABLES = {
    "RUN": "s3://bucket/run",
    "SLURM_JOB_ID": "7",
    "SLURM_ARRAY_JOB_ID": "6",
    "NAME": "dipaco-3-x",
    "JOB": "dipaco-workers-3",
    "JOB_COMPLETION_INDEX": "1",
}


def ended(script, folder, *, code=None, state="RUNNING"):
    """The exit code of a script whose `dipaco` ends with `code`, or, for None, has SIGTERM sent to
    the script and then ends with 0.
    """
    for name in ("dipaco", "squeue", "scontrol"):
        text = PROGRAMS["told" if name == "dipaco" and code is not None else name]
        text = text.format(folder=folder, code=code, state=state, signal="TERM")
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    environment = {**VARIABLES, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", SCRIPTS[script]], env=environment).returncode


@pytest.mark.parametrize("name", [*SCRIPTS, "skypilot.yaml", "Containerfile"])
def test_every_command_in_it_parses(name):
    file = EXAMPLES / name
    lines = re.sub(r"^#\s+", "", file.read_text().replace("\\\n", " "), flags=re.MULTILINE)
    found = [
        ["1" if word == "$JOB_COMPLETION_INDEX" else word for word in words if word != "&"]
        for words in commands_of(lines.splitlines(), "dipaco")
    ]
    assert found or name == "Containerfile"
    for words in found:
        strict_parser().parse_args(words)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_worker_that_ends_by_itself_ends_the_script_with_its_code(script, tmp_path):
    assert ended(script, tmp_path, code=TaskFailed.exit_code) == TaskFailed.exit_code
    assert ended(script, tmp_path, code=0) == 0
    assert not (tmp_path / "requeued").exists()
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:3] == ["worker", "--run", "s3://bucket/run"]
    strict_parser().parse_args(asked)


def test_a_job_that_is_told_to_leave_drains_and_is_requeued(tmp_path):
    assert ended("slurm.sh", tmp_path) == 0
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PENDING"])
def test_a_job_that_was_cancelled_or_preempted_does_not_requeue_itself(tmp_path, state):
    ended("slurm.sh", tmp_path, state=state)
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize("code", [MachineFault.exit_code, NOT_NOW])
def test_a_job_on_a_machine_at_fault_or_of_a_drained_run_is_requeued(tmp_path, code):
    assert ended("slurm.sh", tmp_path, code=code) == 0
    assert (tmp_path / "requeued").exists()


@pytest.mark.parametrize("file", JOBS)
def test_a_pod_that_is_told_to_leave_drains_and_does_not_complete_its_index(file, tmp_path):
    spec, told = JOBS[file]["workers"]["spec"], ended(file, tmp_path)
    # A day: pods that are drained, sent away, on bad nodes, without a database, killed, refused.
    day = [NOT_NOW, told, MachineFault.exit_code] * 500 + [137, DipacoError.exit_code, 1] * 5
    assert end_of_job(spec, [*day, 0]) == "Complete"
    assert end_of_job(spec, day) == "Running"
    assert end_of_job(spec, [*day, TaskFailed.exit_code, 0]) == "Failed"
    # What one pod is refused fails its index alone. Hosts of a worker fail together.
    assert ("backoffLimitPerIndex" in spec) is (file == "kubernetes.yaml")


def end_of_job(spec, codes):
    """What Kubernetes makes of an index whose pods end with these codes, one after the other."""
    rules = [r for r in spec["podFailurePolicy"]["rules"] if "onExitCodes" in r]
    limit, failures = spec.get("backoffLimitPerIndex", spec.get("backoffLimit")), 0
    for code in codes:
        if code == 0:
            return "Complete"
        action = next((r["action"] for r in rules if code in r["onExitCodes"]["values"]), "Count")
        failures += action == "Count"
        if action == "FailJob" or failures > limit:
            return "Failed"
    return "Running"


def test_nobody_who_starts_workers_again_gives_one_up_that_an_upgrade_sends_away():
    page = (ROOT / "dipaco" / "workers" / "README.md").read_text()
    (given_up,) = re.findall(r"`RestartPreventExitStatus=([\d ]+)`", page)
    assert given_up == str(TaskFailed.exit_code)
    assert RunOfOtherVersion.exit_code == NOT_NOW


@pytest.mark.parametrize("file", JOBS)
def test_a_pod_has_what_its_command_reads_and_time_to_drain(file):
    container, spec = container_of(file), JOBS[file]["workers"]["spec"]
    given = {each["name"] for each in container["env"]}
    read = set(re.findall(r"\$\"?([A-Z][A-Z_]+)", container["args"][0]))
    assert {"RUN", "NAME"} <= read <= given | {"JOB_COMPLETION_INDEX"}  # Kubernetes gives that one
    # Credentials are in no file: they come from a secret.
    assert [each["secretRef"]["name"] for each in container["envFrom"]] == ["dipaco"]
    assert not given & {"DIPACO_DATABASE", "AWS_SECRET_ACCESS_KEY"}
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 30
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in spec["template"]["spec"]["volumes"]}


@pytest.mark.parametrize("file", ["jobset_tpu.yaml", "jobset_gpu.yaml"])
def test_a_set_of_jobs_begins_the_run_before_its_workers_join_it(file):
    begin, worker = container_of(file, "begin"), container_of(file)
    options = strict_parser().parse_args(begin["args"])
    assert (options.verb, options.database) == ("begin", "env:DIPACO_DATABASE")
    assert begin["env"][0] == worker["env"][0]  # the same RUN
    jobs = yaml.safe_load((EXAMPLES / file).read_text())
    workers = jobs["spec"]["replicatedJobs"][1]
    assert workers["dependsOn"] == [{"name": "begin", "status": "Complete"}]
    given = re.findall(r'--hosts (\d+) .* --coordinator "(.*):', worker["args"][0])
    # The set's service gives pods these names. Hosts of a slice find each other by themselves.
    named = (str(workers["template"]["spec"]["completions"]), f"$JOB-0.{jobs['metadata']['name']}")
    assert given == ([named] if file == "jobset_gpu.yaml" else [])


def test_a_slice_comes_from_nothing_to_its_first_status(tmp_path):
    """By a `gcloud` that notes what it is asked, and has nothing yet."""
    (tmp_path / "gcloud").write_text(
        '#!/bin/bash\nprintf "%s\\0" "$*" >> asked\n[[ $* != *describe* ]]\n'
    )
    (tmp_path / "gcloud").chmod(0o755)
    command = ["bash", EXAMPLES / "tpu_vm.sh", "/at/config.py"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    given = {"PATH": path, "BUCKET": "mine", "PASSWORD": "secret"}
    subprocess.run(command, env=given, cwd=tmp_path, check=True)
    *asked, _ = (tmp_path / "asked").read_text().split("\0")
    made = [call.partition(" create ")[0] for call in asked if " create " in call]
    assert made == ["storage buckets", "compute instances", "compute tpus tpu-vm"]
    remote = [call.partition("--command ")[2] for call in asked if " ssh " in call]
    for script in remote:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    found = re.findall(r"bin/dipaco ([^;&\n]+)", "\n".join(remote))
    options = [strict_parser().parse_args(words.split()) for words in found]
    assert [each.verb for each in options] == ["begin", "worker", "status"]
    assert {str(each.run) for each in options} == {"gs://mine/run"}
    assert found[0].startswith("begin config.py")
    assert f"RestartPreventExitStatus={TaskFailed.exit_code} " in "".join(remote)


def test_a_task_of_skypilot_is_one_worker():
    for script in (SKYPILOT["setup"], SKYPILOT["run"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    (words,) = commands_of([SKYPILOT["run"].removeprefix("exec ")], "dipaco")
    assert strict_parser().parse_args(words).verb == "worker"
    again = SKYPILOT["resources"]["job_recovery"]["recover_on_exit_codes"]
    assert again == [MachineFault.exit_code, NOT_NOW]


def test_the_container_file_installs_the_wheel_with_extras_that_there_are():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    arguments = dict(re.findall(r"^ARG (\w+)=(.*)$", CONTAINER, re.MULTILINE))
    assert set(arguments["EXTRAS"].split(",")) <= project["optional-dependencies"].keys()
    (python,) = re.findall(r"^FROM python:(\S+)-slim$", CONTAINER, re.MULTILINE)
    assert project["requires-python"] == f">={python}"
    (program,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]$', CONTAINER, re.MULTILINE)
    assert program in project["scripts"]
    tags = re.findall(r"(?<![.])dipaco:(\d[\d.]*)", CONTAINER + str(JOBS) + str(CELLS))
    assert set(tags) == {project["version"]}


def test_the_manifest_of_cells_serves_every_path_and_scales_by_what_waits(tmp_path):
    upstreams = pytest.importorskip("dipaco.serving.upstreams", reason="no extra `serve` here")
    parts = {(each["kind"], each["metadata"]["name"]): each for each in CELLS}
    run = load_config(ROOT / "configs" / "quickstart.py")
    (cells_file,) = parts["ConfigMap", "cells"]["data"].values()
    (tmp_path / "cells.yaml").write_text(cells_file)
    targets = upstreams.read_targets(tmp_path / "cells.yaml", run.name, run.num_paths)
    urls = {path: target.server.url for path, (target,) in targets.items()}
    for kind, name in parts:
        if kind != "Deployment":
            continue
        spec = parts[kind, name]["spec"]
        pod = spec["template"]
        assert spec["selector"]["matchLabels"] == pod["metadata"]["labels"] == {"app": name}
        assert parts["Service", name]["spec"]["selector"] == {"app": name}
        (container,) = pod["spec"]["containers"]
        options = strict_parser().parse_args(container["args"])
        assert (options.host, container["ports"]) == ("0.0.0.0", [{"containerPort": 8000}])
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert pod["spec"]["terminationGracePeriodSeconds"] > options.drain_seconds
        if name == "router":
            (mount,) = container["volumeMounts"]
            assert str(options.upstream) == f"{mount['mountPath']}/cells.yaml"
            continue
        held = [path for path, url in urls.items() if url == f"http://{name}:8000"]
        assert list(paths_in(options.paths)) == held
        scaled = parts["HorizontalPodAutoscaler", name]["spec"]
        assert scaled["scaleTargetRef"]["name"] == name
        (metric,) = scaled["metrics"]
        assert metric["pods"]["metric"]["name"] == "vllm_num_requests_waiting"


def test_a_cell_on_ray_serve_is_an_application_of_its_run(monkeypatch):
    pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")
    monkeypatch.syspath_prepend(EXAMPLES)
    import ray_cell

    app = ray_cell.cell({"run": "s3://bucket/run", "paths": "0-1", "gpus": "0"})
    (deployment,) = [app._bound_deployment]
    assert deployment.ray_actor_options == {"num_gpus": 0.0, "num_cpus": 1}
    assert deployment.max_ongoing_requests == 320
