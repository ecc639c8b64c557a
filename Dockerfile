# One image for clusters. CPU (tested by its commands):  docker build -t ssd .
# CUDA:  docker build --build-arg BASE=nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04 --build-arg TORCH=torch==2.13.0 -t ssd-cuda .
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
ARG TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
ARG EXTRAS=search,speech,tensorboard
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 VIRTUAL_ENV=/opt/ssd PATH=/opt/ssd/bin:$PATH
RUN if ! command -v python3 >/dev/null; then \
      apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*; \
    fi && python3 -m venv /opt/ssd && pip install ${TORCH}
WORKDIR /opt/src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY conf conf
COPY ssd_infer ssd_infer
COPY ssd_train ssd_train
RUN pip install --constraint constraints.txt ".[${EXTRAS}]"
WORKDIR /workspace
ENTRYPOINT ["python", "-m"]
CMD ["ssd_train"]
