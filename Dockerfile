# lipcert serve in a container: docker build -t lipcert . && docker run --rm -p 127.0.0.1:8000:8000 lipcert
FROM python:3.11-slim

WORKDIR /lipcert
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
# 2.13.0+cpu of the second index counts as newer than 2.13.0, which would bring gigabytes of CUDA along.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    --constraint constraints.txt '.[serve]'

RUN useradd --create-home serve
USER serve
WORKDIR /home/serve
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["lipcert", "serve"]
CMD ["lipconvnet5-cifar10", "--host", "0.0.0.0"]
