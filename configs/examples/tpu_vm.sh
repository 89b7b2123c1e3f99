#!/usr/bin/env bash
# A run on a TPU slice of Google Cloud, from nothing to its first `dipaco status`. Untried on a TPU: a test runs it
# with a `gcloud` that only notes what it is asked, no more. What to type, in order, on your own machine:
#
#   gcloud auth login && gcloud config set project PROJECT      # once, with billing
#   gcloud services enable tpu.googleapis.com compute.googleapis.com storage.googleapis.com
#   pip wheel --no-deps --wheel-dir dist .                      # in a clone; `dist` has this one wheel
#   dipaco plan config.py --device v5e:2x4                      # its `mesh` takes 8 devices and fits, as paper_2x4's
#   BUCKET=my-bucket PASSWORD=letters-and-digits bash configs/examples/tpu_vm.sh config.py
#
# It makes the bucket, a small machine `facts` with PostgreSQL, which is not preempted, and a spot slice of one or
# several hosts (TYPE), starts a worker on each host, and prints `status`. What is there already stays. Again:
#
#   gcloud compute tpus tpu-vm ssh worker --zone us-west4-a --worker 0 \
#     --command 'set -a; . ./dipaco.env; .local/bin/dipaco status --run gs://my-bucket/run --watch'
#   gcloud compute tpus tpu-vm delete worker --zone us-west4-a  # after a preemption; then the script once more
#   gcloud compute instances delete facts --zone us-west4-a     # at the end; the bucket has the model
set -eu
config=$1 name=${NAME:-worker} zone=${ZONE:-us-west4-a} type=${TYPE:-v5litepod-8} run=gs://$BUCKET/run
runtime=${RUNTIME:-v2-alpha-tpuv5-lite}
on_hosts() { gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker "$1" --command "$2"; }

gcloud storage buckets describe "gs://$BUCKET" >/dev/null 2>&1 ||
  gcloud storage buckets create "gs://$BUCKET" --location "${zone%-*}"
gcloud compute instances describe facts --zone "$zone" >/dev/null 2>&1 ||
  gcloud compute instances create facts --zone "$zone" --machine-type e2-small \
    --image-family debian-12 --image-project debian-cloud --metadata startup-script="
      apt-get update && apt-get install -y postgresql || exit
      cd /etc/postgresql/15/main
      grep -q dipaco pg_hba.conf && exit
      echo 'host runs dipaco 10.0.0.0/8 scram-sha-256' >> pg_hba.conf
      echo \"listen_addresses = '*'\" >> postgresql.conf
      systemctl restart postgresql && cd /tmp
      su postgres -c \"psql -c \\\"CREATE ROLE dipaco LOGIN PASSWORD '$PASSWORD'\\\"\"
      su postgres -c 'createdb --owner dipaco runs'"
gcloud compute tpus tpu-vm describe "$name" --zone "$zone" >/dev/null 2>&1 ||
  gcloud compute tpus tpu-vm create "$name" --zone "$zone" --accelerator-type "$type" --version "$runtime" --spot

gcloud compute tpus tpu-vm scp dist/dipaco-*.whl "$config" "$name": --zone "$zone" --worker all
on_hosts all "
  umask 077
  echo 'DIPACO_DATABASE=postgresql://dipaco:$PASSWORD@facts/runs' > dipaco.env
  curl -LsSf https://astral.sh/uv/install.sh | sh
  .local/bin/uv tool install --python 3.12 --with 'jax[tpu]' \"\$(echo ./dipaco-*.whl)[train,postgresql]\""
on_hosts 0 "
  set -a; . ./dipaco.env
  for _ in \$(seq 20); do  # until the database is there
    .local/bin/dipaco begin $(basename "$config") --run $run --database env:DIPACO_DATABASE && exit
    sleep 15
  done
  exit 1"
# SIGTERM, which a machine gets before it is taken, drains the worker. 5: a task has failed.
on_hosts all "
  sudo systemd-run --unit dipaco --uid \$(id -u) --property WorkingDirectory=\$HOME \
    --property EnvironmentFile=\$HOME/dipaco.env --setenv HOME=\$HOME --property TimeoutStopSec=120 \
    --property Restart=on-failure --property RestartSec=10 --property RestartPreventExitStatus=5 \
    \$HOME/.local/bin/dipaco worker --run $run --database env:DIPACO_DATABASE"
on_hosts 0 "set -a; . ./dipaco.env; .local/bin/dipaco status --run $run"
