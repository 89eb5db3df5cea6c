# docker build -t speedyfeed . && docker run -p 8000:8000 -v ./runs/first:/model:ro -v feed:/data -e SPEEDYFEED_TOKEN speedyfeed
FROM python:3.12-slim
WORKDIR /app
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu '.[serve]' \
    && useradd --system --create-home speedyfeed \
    && install -d -o speedyfeed /data
USER speedyfeed
VOLUME /data
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
ENTRYPOINT ["speedyfeed", "serve", "/model", "--host", "0.0.0.0", "--data", "/data"]
