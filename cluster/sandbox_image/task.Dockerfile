# What a task's own image gets on top: the pod's agent and the harness, which need nothing that is in that image.
ARG HARNESS
ARG TASK
FROM ${HARNESS} AS harness
USER 0
RUN ["/opt/openforge/bin/python3", "-I", "/opt/openforge/agent/cluster/runtimes/pod_image.py", "carry"]

FROM ${TASK}
USER 0
COPY --from=harness /opt/ /opt/
ARG OPENFORGE_WORK
RUN ["/opt/openforge/bin/python3", "-I", "/opt/openforge/agent/cluster/runtimes/pod_image.py", "settle"]
USER 1000:1000
