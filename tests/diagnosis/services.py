"""Record what libraries raise when a service, the network or a file system fails.

Run `python -m tests.diagnosis.services FOLDER`: each scenario is a script of its own that meets the
real fault (a refused connection, a name that does not resolve, a server that says 503 or hangs up)
with the real library, and what it prints on stderr is kept. `ours` are errors of the script that
look similar, and of `unclear` ones the text may mean both. The tests read the kept files, as with
record.py. gcsfs and adlfs are installed for that alone.
"""

import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.diagnosis.record import anonymous

ERROR = "<?xml version='1.0'?><Error><Code>{0}</Code><Message>said by a test</Message></Error>"
CODES = {503: "SlowDown", 500: "InternalError", 404: "NoSuchKey", 403: "AccessDenied"}
REFUSED = "http://127.0.0.1:9/x"
NOWHERE = "http://no-such-host.invalid/x"
S3 = (
    "import boto3, botocore.config\n"
    "c = boto3.client('s3', endpoint_url='{url}', region_name='x', aws_access_key_id='a',\n"
    "  aws_secret_access_key='b', config=botocore.config.Config(retries={{'max_attempts': 0}},\n"
    "  read_timeout=0.5, s3={{'addressing_style': 'path'}}))\n"
    "c.get_object(Bucket='data', Key='shard-1')['Body'].read()\n"
)
S3FS = (
    "import s3fs\n"
    "fs = s3fs.S3FileSystem(key='a', secret='b', endpoint_url='{url}',\n"
    "  config_kwargs={{'retries': {{'max_attempts': 0}}}})\n"
    "fs.retries = 1\n"
    "fs.cat('data/shard-1')\n"
)
S3FS_DOES = S3FS.replace("fs.cat('data/shard-1')", "{does}")
HEADS, LISTS = "fs.open('data/shard-1').read(4)", "fs.ls('data')"
HUB = (
    "import os\n"
    "os.environ.update(HF_ENDPOINT='{url}', HF_HOME=os.path.dirname(__file__),\n"
    "  HF_HUB_DISABLE_TELEMETRY='1', HF_HUB_DISABLE_XET='1', HF_HUB_ETAG_TIMEOUT='1',\n"
    "  HF_HUB_DOWNLOAD_TIMEOUT='1', HF_TOKEN='hf_x')\n"
)
DOWNLOAD = HUB + (
    "from huggingface_hub import hf_hub_download\nhf_hub_download('me/model', 'model.bin')\n"
)
SNAPSHOT = HUB + "from huggingface_hub import snapshot_download\nsnapshot_download('me/model')\n"
HUB_FS = HUB + (
    "from huggingface_hub import HfFileSystem\n"
    "HfFileSystem().open('datasets/me/data/0.parquet').read()\n"
)
DATASETS = HUB + (
    "import datasets\n"
    "datasets.config.STREAMING_READ_MAX_RETRIES = 1\n"
    "datasets.config.STREAMING_READ_RETRY_INTERVAL = 0\n"
    "datasets.config.STREAMING_READ_SERVER_UNAVAILABLE_RETRY_INTERVAL = 0\n"
    "if __name__ == '__main__':\n"
    "    next(iter(datasets.load_dataset({what}, split='train')))\n"
)
FILES = "'json', data_files='{url}/0.jsonl'"
CREDENTIALS = (
    "import os\n"
    "os.environ.update(AWS_CONTAINER_CREDENTIALS_FULL_URI='{url}', HOME='/nonexistent')\n"
    "import boto3\n"
    "boto3.client('s3', region_name='x').list_buckets()\n"
)
GCSFS = (
    "import gcsfs\n"
    "fs = gcsfs.GCSFileSystem(token='anon', endpoint_url='{url}', project='x')\n"
    "print(fs.cat('data/shard-1'))\n"
)
ADLFS = (
    "from adlfs import AzureBlobFileSystem\n"
    "fs = AzureBlobFileSystem('a', connection_string='DefaultEndpointsProtocol=http;'\n"
    "  'AccountName=a;AccountKey=Zm9v;BlobEndpoint={url}/a', retry_total=0)\n"
    "fs.cat('data/shard-1')\n"
)
AIOHTTP = (
    "import aiohttp, asyncio\n"
    "async def main():\n"
    "    t = aiohttp.ClientTimeout(total=0.5)\n"
    "    async with aiohttp.ClientSession(timeout=t, raise_for_status=True) as s:\n"
    "        async with s.get('{url}') as r:\n"
    "            await r.read()\n"
    "asyncio.run(main())\n"
)
REQUESTS = "import requests\nrequests.get('{url}', timeout=0.5).raise_for_status()\n"
URLLIB = "import urllib.request\nurllib.request.urlopen('{url}', timeout=0.5).read()\n"
URLLIB3 = "import urllib3\nurllib3.PoolManager(retries=1, timeout=0.5).request('GET', '{url}')\n"
FSSPEC = "import fsspec\nfsspec.open('{url}').open().read()\n"
LOADER = (
    "import os, signal, time, requests\n"
    "from torch.utils.data import DataLoader, Dataset\n"
    "class Remote(Dataset):\n"
    "    def __len__(self):\n"
    "        return 8\n"
    "    def __getitem__(self, index):\n"
    "        {body}\n"
    "if __name__ == '__main__':\n"
    "    for batch in DataLoader(Remote(), num_workers=1, timeout={timeout}):\n"
    "        pass\n"
)
RAISES = "import errno, os\nraise OSError(errno.{0}, os.strerror(errno.{0}), '/data/shard-1')\n"

# name: (script, path on the server)
ENVIRONMENT: dict[str, str] = {
    "requests_refused": REQUESTS.format(url=REFUSED),
    "requests_no_such_host": REQUESTS.format(url=NOWHERE),
    "requests_503": REQUESTS.format(url="{server}/503"),
    "requests_429": REQUESTS.format(url="{server}/429"),
    "requests_timeout": REQUESTS.format(url="{server}/slow"),
    "requests_cut": REQUESTS.format(url="{server}/cut"),
    "requests_hang_up": REQUESTS.format(url="{server}/hang-up"),
    "urllib_refused": URLLIB.format(url=REFUSED),
    "urllib_503": URLLIB.format(url="{server}/503"),
    "urllib_timeout": URLLIB.format(url="{server}/slow"),
    "urllib_cut": URLLIB.format(url="{server}/cut"),
    "urllib3_refused": URLLIB3.format(url=REFUSED),
    "aiohttp_refused": AIOHTTP.format(url=REFUSED),
    "aiohttp_no_such_host": AIOHTTP.format(url=NOWHERE),
    "aiohttp_503": AIOHTTP.format(url="{server}/503"),
    "aiohttp_timeout": AIOHTTP.format(url="{server}/slow"),
    "aiohttp_cut": AIOHTTP.format(url="{server}/cut"),
    "aiohttp_hang_up": AIOHTTP.format(url="{server}/hang-up"),
    "fsspec_refused": FSSPEC.format(url=REFUSED),
    "boto3_refused": S3.format(url="http://127.0.0.1:9"),
    "boto3_no_such_host": S3.format(url="http://no-such-host.invalid"),
    "boto3_slow_down": S3.format(url="{server}/503"),
    "boto3_internal_error": S3.format(url="{server}/500"),
    "boto3_timeout": S3.format(url="{server}/slow"),
    "boto3_cut": S3.format(url="{server}/cut"),
    "boto3_hang_up": S3.format(url="{server}/hang-up"),
    "s3fs_slow_down": S3FS.format(url="{server}/503"),
    "s3fs_refused": S3FS.format(url="http://127.0.0.1:9"),
    "s3fs_open_slow_down": S3FS_DOES.format(url="{server}/503", does=HEADS),
    "s3fs_list_expired_token": S3FS_DOES.format(url="{server}/400-ExpiredToken", does=LISTS),
    "s3fs_list_slow_down": S3FS_DOES.format(url="{server}/503", does=LISTS),
    "s3fs_list_internal_error": S3FS_DOES.format(url="{server}/500", does=LISTS),
    "s3fs_open_refused": S3FS_DOES.format(url="http://127.0.0.1:9", does=HEADS),
    "boto3_expired_token": S3.format(url="{server}/400-ExpiredToken"),
    "boto3_throttled": S3.format(url="{server}/429-TooManyRequestsException"),
    "hub_refused": DOWNLOAD.format(url="http://127.0.0.1:9"),
    "hub_503": DOWNLOAD.format(url="{server}/503"),
    "hub_429": DOWNLOAD.format(url="{server}/429"),
    "hub_timeout": DOWNLOAD.format(url="{server}/slow"),
    "hub_cut": DOWNLOAD.format(url="{server}/cut"),
    "hub_snapshot_refused": SNAPSHOT.format(url="http://127.0.0.1:9"),
    "hub_snapshot_503": SNAPSHOT.format(url="{server}/503"),
    "hub_files_503": HUB_FS.format(url="{server}/503"),
    "hub_files_refused": HUB_FS.format(url="http://127.0.0.1:9"),
    "datasets_hub_refused": DATASETS.format(url="http://127.0.0.1:9", what="'me/data'"),
    "datasets_stream_cut": DATASETS.format(
        url=REFUSED, what=FILES.format(url="{server}/cut") + ", streaming=True"
    ),
    "boto3_credentials_503": CREDENTIALS.format(url="{server}/503"),
    "boto3_credentials_refused": CREDENTIALS.format(url=REFUSED),
    "gcsfs_503": GCSFS.format(url="{server}/503"),
    "gcsfs_refused": GCSFS.format(url="http://127.0.0.1:9"),
    "adlfs_busy": ADLFS.format(url="{server}/503-ServerBusy"),
    "adlfs_refused": ADLFS.format(url="http://127.0.0.1:9"),
    "socket_no_such_host": "import socket\nsocket.create_connection(('no-such-host.invalid', 1))\n",
    "socket_timeout": (
        "import socket\ns = socket.create_connection(('127.0.0.1', {port}), 0.5)\ns.recv(1)\n"
    ),
    "pipe_broken": "import os\nr, w = os.pipe()\nos.close(r)\nos.write(w, b'x')\n",
    "read_eio": "open('/proc/self/mem', 'rb', 0).read(1)\n",
    "stale": RAISES.format("ESTALE"),
    "unmounted": RAISES.format("ENOTCONN"),
    "loader_worker_refused": LOADER.format(body=f"return requests.get({REFUSED!r})", timeout=0),
    "loader_worker_expired_token": LOADER.format(
        body="import s3fs; return s3fs.S3FileSystem(key='a', secret='b', "
        "endpoint_url='{server}/400-ExpiredToken').ls('data')",
        timeout=0,
    ),
    "loader_timed_out": LOADER.format(body="time.sleep(60)", timeout=1),
    "wrapped_on_purpose": (
        "class ShardError(ValueError):\n    pass\n"
        "import socket\n"
        "try:\n    socket.create_connection(('127.0.0.1', 9))\n"
        "except OSError as error:\n    raise ShardError('shard-1 cannot be read') from error\n"
    ),
    "exit_after_refused": (
        "import socket, sys\n"
        "try:\n    socket.create_connection(('127.0.0.1', 9))\n"
        "except OSError:\n    raise RuntimeError('no data')\n"
    ),
}
UNCLEAR: dict[str, str] = {
    "boto3_head_expired_token": S3.format(url="{server}/400-ExpiredToken").replace("get", "head"),
    "s3fs_expired_token": S3FS.format(url="{server}/400-ExpiredToken"),
    "datasets_hub_503": DATASETS.format(url="{server}/503", what="'me/data'"),
    "datasets_hub_404": DATASETS.format(url="{server}/404", what="'me/data'"),
    "datasets_files_503": DATASETS.format(url=REFUSED, what=FILES.format(url="{server}/503")),
    "datasets_files_404": DATASETS.format(url=REFUSED, what=FILES.format(url="{server}/404")),
}
"""Of which the text does not say which of both it is."""
OURS: dict[str, str] = {
    "requests_404": REQUESTS.format(url="{server}/404"),
    "requests_403": REQUESTS.format(url="{server}/403"),
    "requests_no_scheme": REQUESTS.format(url="data/shard-1"),
    "urllib_404": URLLIB.format(url="{server}/404"),
    "urllib_no_scheme": URLLIB.format(url="data/shard-1"),
    "urllib_unknown_scheme": URLLIB.format(url="s3://data/shard-1"),
    "aiohttp_404": AIOHTTP.format(url="{server}/404"),
    "aiohttp_no_scheme": AIOHTTP.format(url="data/shard-1"),
    "boto3_no_such_key": S3.format(url="{server}/404"),
    "boto3_access_denied": S3.format(url="{server}/403"),
    "s3fs_no_such_key": S3FS.format(url="{server}/404"),
    "s3fs_open_no_such_key": S3FS_DOES.format(url="{server}/404", does=HEADS),
    "s3fs_open_access_denied": S3FS_DOES.format(url="{server}/403", does=HEADS),
    "s3fs_list_access_denied": S3FS_DOES.format(url="{server}/403", does=LISTS),
    "s3fs_list_bad_key": S3FS_DOES.format(url="{server}/403-InvalidAccessKeyId", does=LISTS),
    "hub_404": DOWNLOAD.format(url="{server}/404"),
    "hub_401": DOWNLOAD.format(url="{server}/401"),
    "hub_files_404": HUB_FS.format(url="{server}/404"),
    "datasets_hub_401": DATASETS.format(url="{server}/401", what="'me/data'"),
    "gcsfs_404": GCSFS.format(url="{server}/404"),
    "gcsfs_403": GCSFS.format(url="{server}/403"),
    "adlfs_no_such_blob": ADLFS.format(url="{server}/404-BlobNotFound"),
    "adlfs_denied": ADLFS.format(url="{server}/403-AuthenticationFailed"),
    "timeout_argument": "raise ValueError('timeout must be > 0')\n",
    "no_such_file": "open('/data/shard-1')\n",
    "bug_of_a_handler": (
        "import socket\n"
        "try:\n    socket.create_connection(('127.0.0.1', 9))\n"
        "except OSError:\n    print(dict()['mirror'])\n"
    ),
    "loader_worker_bug": LOADER.format(body="return dict()[index]", timeout=0),
}
KILLED: dict[str, str] = {
    "loader_worker_killed": LOADER.format(body="os.kill(os.getpid(), signal.SIGKILL)", timeout=0),
    "loader_worker_bus_error": LOADER.format(body="os.kill(os.getpid(), signal.SIGBUS)", timeout=0),
}


class Handler(BaseHTTPRequestHandler):
    """Answers as the first part of the path says."""

    def do_GET(self) -> None:
        """One request."""
        what = self.path.split("/")[1]
        if self.headers.get("Expect"):
            self.handle_expect_100()
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if what == "slow":
            time.sleep(3)
        if what == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.send_header("ETag", '"0"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.end_headers()
            self.wfile.write(b"x" * 10 if self.command == "GET" else b"")
        elif what[:3].isdecimal():
            status, _, code = what.partition("-")
            body = ERROR.format(code or CODES.get(int(status), "Other")).encode()
            self.send_response(int(status))
            self.send_header("x-ms-error-code", code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if self.command == "GET" else b"")
        self.close_connection = True

    do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815 - the name that http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


def record(script: str, server: str) -> str:
    """stderr of a script that meets the fault."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "train.py"
        port = server.rpartition(":")[2]
        file.write_text(script.replace("{server}", server).replace("{port}", port))
        ran = subprocess.run(
            [sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False
        )
        assert ran.returncode != 0, script
        return anonymous(ran.stderr, name).replace(server, "http://data.example:80")


def main(target: Path) -> None:
    """Record every scenario into one file each."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    kinds = {"environment": ENVIRONMENT, "ours": OURS, "unclear": UNCLEAR, "killed": KILLED}
    for folder, scenarios in kinds.items():
        (target / folder).mkdir(parents=True, exist_ok=True)
        for name, script in scenarios.items():
            file = target / folder / f"{name}.txt"
            if not file.exists():
                file.write_text(record(script, address))
    server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
