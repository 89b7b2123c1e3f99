"""A Ray cluster of several nodes on this machine, in a process of its own, since a
process that has loaded JAX should not fork.

    python tests/support/nodes.py        prints its address; then a command a line in, a line out

    lose RAYLET     the node of this process number dies, with all that it holds
    add             another node comes
"""

import os
import sys

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's workers are nice otherwise, and starve beside the rest of the tests.
    "RAY_worker_niceness": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "XLA_FLAGS": "",  # its workers are as a user's are: no fake devices
}

from ray.cluster_utils import Cluster

SMALL = {"object_store_memory": 80 << 20}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's own output goes to stderr
    head = {"num_cpus": 0, "include_dashboard": False, **SMALL}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2, wait=False, **SMALL)
        print(cluster.address, file=answers, flush=True)
        for line in sys.stdin:
            verb, *of = line.split()
            if verb == "add":
                cluster.add_node(num_cpus=2, wait=False, **SMALL)
            else:
                (node,) = [
                    node
                    for node in cluster.worker_nodes
                    if node.all_processes["raylet"][0].process.pid == int(of[0])
                ]
                cluster.remove_node(node, allow_graceful=False)
            print("done", file=answers, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
