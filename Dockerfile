# syntax=docker/dockerfile:1
# Two stages: the first installs the locked, hashed packages and the project; the second is what runs.
# Pin it by its digest: docker build --build-arg PYTHON_IMAGE=python@sha256:… (docs/deploy.md, "The image").
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY .ci/toolchain/runtime.txt .ci/toolchain/build.txt ./
RUN python -m venv /opt/toolhub && /opt/toolhub/bin/pip install --require-hashes --no-deps --requirement runtime.txt \
    && python -m pip install --require-hashes --no-deps --requirement build.txt
COPY pyproject.toml README.md LICENSE* ./
COPY gen/python gen/python
COPY service service
COPY clients/python clients/python
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/toolhub/bin/pip install --no-deps --no-index /wheels/*.whl

FROM ${PYTHON_IMAGE}
# bubblewrap: commands of core/exec.run see nothing but their workspace. Where the container may not make user
# namespaces, they are held by rlimits alone, or refused, as policy says. Of no certain version: Debian keeps only its newest.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin toolhub \
    && install --directory --owner=toolhub --group=toolhub --mode=0700 /data
COPY --from=build /opt/toolhub /opt/toolhub
COPY deploy/image.yaml /opt/toolhub/image.yaml
# A file, for variables would win over the settings of a file that is mounted: TOOLHUB_CONFIG or --config names another one,
# and TOOLHUB_… changes single settings.
ENV PATH=/opt/toolhub/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TOOLHUB_CONFIG=/opt/toolhub/image.yaml
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 50051 50052 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s --retries=3 CMD ["toolhub", "health", "--self"]
ENTRYPOINT ["toolhub"]
CMD ["serve"]
