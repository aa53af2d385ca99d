"""Frameworks, trainers, launchers and services beside PyTorch itself."""

from holdfast.diagnosis.signatures.signature import Blame, signature

LIBRARIES = (
    signature(
        "hub-access",
        r"GatedRepoError|RepositoryNotFoundError|Access to model .* is restricted|"
        r"access a gated repo|401 Client Error: Unauthorized for url: https://huggingface",
        Blame.CONFIGURATION,
        "The Hugging Face Hub refuses the repository: no token, no access, or another name.",
        "Accept the licence on its page, set HF_TOKEN from a secret (env in the job file), and "
        "check the name.",
    ),
    signature(
        "hub-unreachable",
        r"We couldn't connect to 'https://huggingface\.co'|LocalEntryNotFoundError|"
        r"OfflineModeIsEnabled",
        Blame.NETWORK,
        "The Hugging Face Hub cannot be reached, and the file is not in the cache.",
        "Download it beforehand into a shared HF_HOME, and set HF_HUB_OFFLINE=1 for the job.",
    ),
    signature(
        "rate-limited",
        r"429 (?:Client Error|Too Many Requests)|HTTP Error 429|ClientResponseError: 429",
        Blame.NETWORK,
        "A service refuses because it was asked too often, mostly by all ranks at once.",
        "Let one rank per node download, then a barrier; use a shared cache or a mirror.",
    ),
    signature(
        "service-unavailable",
        r"\b50[0234] (?:Server Error|Bad Gateway|Service Unavailable|Gateway Time)|"
        r"HTTP Error 50[0234]|ClientResponseError: 50[0234]|\((?:InternalError|"
        r"ServiceUnavailable)\) when calling|\[Errno 16\] Service Unavailable",
        Blame.ENVIRONMENT,
        "A service that the script needs failed.",
        "It may recover: Holdfast retries with pauses. Make downloads part of the "
        "image where you can.",
    ),
    signature(
        "trainer-checkpoint-incomplete",
        r"No such file or directory: '.*checkpoint-\d+/trainer_state\.json'",
        Blame.STORAGE,
        "The newest checkpoint of Hugging Face's Trainer is incomplete: it died while saving.",
        "Remove that checkpoint-N folder, so that the one before is taken; with `integrate: auto` "
        "Holdfast takes that one by itself.",
    ),
    signature(
        "tokenizer-padding",
        r"Unable to create tensor, you should probably activate truncation and/or padding",
        Blame.DATA,
        "Texts of one batch have different lengths.",
        "Tokenize with padding and truncation, or use a data collator that pads.",
    ),
    signature(
        "lightning-misconfigured",
        r"MisconfigurationException",
        Blame.CONFIGURATION,
        "Lightning refuses this combination of settings; its message names them.",
        "devices and num_nodes must match what the launcher starts: use devices=-1.",
    ),
    signature(
        "deepspeed-cuda-mismatch",
        r"Installed CUDA version [\d.]+ does not match the version torch was compiled with|"
        r"The detected CUDA version \([\d.]+\) mismatches the version",
        Blame.ENVIRONMENT,
        "nvcc of the image has another version than the CUDA of PyTorch, so no op can be built.",
        "Use an image with the matching toolkit, or prebuilt ops (DS_BUILD_OPS=1 at its build).",
    ),
    signature(
        "extension-build-failed",
        r"Error building extension '|ninja: build stopped|CUDA_HOME environment variable is not",
        Blame.ENVIRONMENT,
        "A CUDA extension could not be compiled at run time.",
        "Install compiler, ninja and the CUDA toolkit, or build it into the image; many ranks that "
        "compile at once need a TORCH_EXTENSIONS_DIR each.",
    ),
    signature(
        "flash-attention-unsupported",
        r"FlashAttention only supports|flash_attn.*not installed|FlashAttention2 has been toggled",
        Blame.ENVIRONMENT,
        "FlashAttention does not run on this GPU or is not installed.",
        "Use attn_implementation='sdpa', or install the wheel for this PyTorch and CUDA.",
    ),
    signature(
        "bitsandbytes-setup",
        r"CUDA Setup failed despite (?:GPU|CUDA) being available|"
        r"bitsandbytes.*(?:libbitsandbytes|was compiled without GPU support)",
        Blame.ENVIRONMENT,
        "bitsandbytes found no library for this CUDA.",
        "Install a version that has it; `python -m bitsandbytes` shows what it looks for.",
    ),
    signature(
        "zero-checkpoint-layout",
        r"ZeRO.*(?:different|changed).*(?:world size|DP)|"
        r"The checkpoint being loaded used a DP world size of",
        Blame.CONFIGURATION,
        "A ZeRO checkpoint was made with another number of ranks.",
        "Convert it with DeepSpeed's universal checkpointing, or train with that number.",
    ),
    signature(
        "tensorflow-memory",
        r"ResourceExhaustedError|OOM when allocating tensor",
        Blame.CODE,
        "TensorFlow ran out of memory of the device.",
        "Use a smaller batch; set_memory_growth where several processes share a GPU.",
    ),
    signature(
        "tensorflow-no-gpu",
        r"Could not load dynamic library 'lib(?:cud|cub|nvinfer)|Cannot dlopen some GPU libraries",
        Blame.ENVIRONMENT,
        "TensorFlow does not find the CUDA libraries that it was built for.",
        "Install tensorflow[and-cuda], or an image with that CUDA and cuDNN.",
    ),
    signature(
        "tensorflow-peer-lost",
        r"[Cc]ollective ops is aborted by|CollectiveOps.*(?:abort|peer)|"
        r"/job:worker/replica:0/task:\d+ (?:is down|heartbeat)",
        Blame.CONSEQUENCE,
        "Another worker of the strategy has exited.",
        "Look at the task that is named.",
    ),
    signature(
        "jax-memory",
        r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)",
        Blame.CODE,
        "XLA ran out of memory of the device.",
        "Use a smaller batch, jax.checkpoint or more sharding; XLA_PYTHON_CLIENT_MEM_FRACTION "
        "leaves room to others.",
    ),
    signature(
        "jax-peer-lost",
        r"JAX distributed service detected fatal errors|"
        r"coordination service.*(?:UNAVAILABLE|heartbeat)|Barrier timed out",
        Blame.CONSEQUENCE,
        "Another JAX process has exited, or did not arrive in time.",
        "Look at the process that is named; jax.distributed.initialize must be called by all.",
    ),
    signature(
        "mpi-slots",
        r"not enough slots available in the system",
        Blame.CONFIGURATION,
        "mpirun is to start more processes than its hosts have slots.",
        "Let slotsPerWorker times workers be at least -np; --oversubscribe only for tests.",
    ),
    signature(
        "mpi-daemons",
        r"ORTE (?:was unable to reliably start|does not know how to route)|(?:PRTE|"
        r"ORTE) has lost communication with a remote daemon|ORTE daemon has unexpectedly failed",
        Blame.NETWORK,
        "mpirun could not start or reach its daemon on another host.",
        "Test `ssh HOST hostname` from the launcher; check host keys, the headless Service and "
        "btl_tcp_if_include.",
    ),
    signature(
        "mpi-as-root",
        r"mpirun has detected an attempt to run as root",
        Blame.CONFIGURATION,
        "Open MPI refuses to run as root.",
        "Run as a user, or pass --allow-run-as-root in a container.",
    ),
    signature(
        "mpi-abort",
        r"MPI_ABORT was invoked on rank|mpirun noticed that process rank|"
        r"Primary job +terminated normally, but \d+ process|"
        r"mpirun\S* detected that one or more processes exited",
        Blame.CONSEQUENCE,
        "mpirun ends all ranks because one has failed.",
        "Look at the output of the rank that is named.",
    ),
    signature(
        "horovod-stalled",
        r"One or more tensors were submitted to be reduced|HorovodInternalError|"
        r"Stalled (?:ops|ranks)|Horovod has been shut down",
        Blame.CONSEQUENCE,
        "Some ranks wait in a collective that others have not called.",
        "The message names the missing ranks: look at what they do.",
    ),
    signature(
        "xgboost-tracker",
        r"rabit.*(?:tracker|connect)|Failed to connect to the tracker",
        Blame.NETWORK,
        "An XGBoost worker does not reach the tracker.",
        "Start the tracker first, on an address that the workers reach; open its port.",
    ),
    signature(
        "ray-worker-lost",
        r"RayActorError|WorkerCrashedError|ray\.exceptions\.\w*DiedError",
        Blame.CONSEQUENCE,
        "A Ray actor or worker died.",
        "Look at its log (ray logs) and for oom-kill on its node.",
    ),
    signature(
        "ray-object-store",
        r"ObjectStoreFullError",
        Blame.CONFIGURATION,
        "Ray's object store is full.",
        "Give it more memory (object_store_memory, /dev/shm of the pod), keep fewer references.",
    ),
    signature(
        "object-missing",
        r"NoSuchKey|404 Client Error|HTTP Error 404|ClientResponseError: 404",
        Blame.CONFIGURATION,
        "An object or a page that the script asks for does not exist.",
        "Check the name, its prefix and the bucket; a list of shards may be older than the shards.",
    ),
    signature(
        "no-credentials",
        r"NoCredentialsError|Unable to locate credentials|DefaultCredentialsError|"
        r"InvalidAccessKeyId|SignatureDoesNotMatch",
        Blame.CONFIGURATION,
        "The object store got no credentials, or wrong ones.",
        "Use a service account with a role, or a secret in env; check the clock for signatures.",
    ),
    signature(
        "object-store-access",
        r"AccessDenied|403 (?:Client Error: )?Forbidden|HTTP Error 403|NoSuchBucket",
        Blame.CONFIGURATION,
        "The object store refuses: no permission, or another name of the bucket.",
        "Check the policy of the role for this bucket and prefix, and its region.",
    ),
    signature(
        "object-store-slow-down",
        r"\(SlowDown\)|Please reduce your request rate",
        Blame.STORAGE,
        "The object store is asked too often under one prefix.",
        "Read larger objects with fewer workers, spread names over prefixes, cache on the node.",
    ),
    signature(
        "tracker-login",
        r"api_key not configured \(no-tty\)|wandb\.errors\.\w*(?:UsageError|CommError|AuthError)",
        Blame.CONFIGURATION,
        "Weights & Biases has no API key, or cannot be reached.",
        "Set WANDB_API_KEY from a secret, or WANDB_MODE=offline.",
    ),
)
