"""Frameworks, trainers, launchers and services beside PyTorch itself."""

from holdfast.diagnosis.signatures.signature import Blame, signature

LIBRARIES = (
    signature(
        "slurm-time-limit",
        r"CANCELLED AT \S+ DUE TO TIME LIMIT",
        Blame.CONFIGURATION,
        "Slurm ended the job because its time was over.",
        "Ask for more (--time), or save before the end: --signal=USR1@120 sends a signal in time; "
        "then requeue.",
    ),
    signature(
        "slurm-cancelled",
        r"(?:slurmstepd|srun)\S*: (?:error: )?.*CANCELLED AT|slurmstepd\S*: error: Failed to send "
        r"MESSAGE_TASK_EXIT|srun: error: \S+ tasks? [\d,-]+: (?!Out Of Memory)",
        Blame.CONSEQUENCE,
        "Slurm ended the tasks of the job: on request, for a preemption or requeue, or because one "
        "of them failed.",
        "DUE TO says why where Slurm knows; else look at the output of the task that ended first, "
        "and at `sacct -j JOB`.",
    ),
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
        r"429 (?:Client Error|Too Many Requests)|HTTP Error 429|ClientResponseError: 429|"
        r"\(TooManyRequestsException\) when calling",
        Blame.NETWORK,
        "A service refuses because it was asked too often, mostly by all ranks at once.",
        "Let one rank per node download, then a barrier; use a shared cache or a mirror.",
    ),
    signature(
        "service-unavailable",
        r"api_core\.exceptions\.(?:ServiceUnavailable|InternalServerError|BadGateway|"
        r"GatewayTimeout)|"
        r"\b50[0234] (?:Server Error|Bad Gateway|Service Unavailable|Gateway Time)|"
        r"HTTP Error 50[0234]|ClientResponseError: 50[0234]|\((?:InternalError|"
        r"ServiceUnavailable)\) when calling|\[Errno 16\] Service Unavailable|invalid status '"
        r"(?:Service Unavailable|Bad Gateway|Internal Server Error)'|non 200 response 50[0234]",
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
        "trainer-checkpoint-missing",
        r"Can't find a valid checkpoint at|No valid checkpoint found in output directory",
        Blame.CONFIGURATION,
        "Hugging Face's Trainer is to resume, and found no checkpoint that it can use.",
        "Check output_dir and its mount on every node; resume_from_checkpoint=True needs a folder "
        "checkpoint-N, so pass it only where one exists.",
    ),
    signature(
        "model-files-missing",
        r"does not appear to have a file named|Incorrect path_or_model_id|HFValidationError|"
        r"Error no file named|Should have a `model_type` key in its config|Can't load (?:tokenizer|"
        r"the configuration|feature extractor|image processor) (?:for|of) '",
        Blame.CONFIGURATION,
        "The folder or repository of the model lacks a file, or its name is wrong.",
        "Check the path on every node: a folder that does not exist is taken for a name on the "
        "Hub. After training save model and tokenizer with save_pretrained; a checkpoint of shards "
        "must be merged first.",
    ),
    signature(
        "transformers-too-old",
        r"Transformers does not recognize this architecture|is required for a normal functioning "
        r"of this module|with `PyTorch` requires `accelerate",
        Blame.ENVIRONMENT,
        "The version of Transformers, or of a package that it needs, does not fit.",
        "Install the version that the message names, or for a new model the newest Transformers.",
    ),
    signature(
        "bf16-unsupported",
        r"Your setup doesn't support bf16|bf16 mixed precision requires|"
        r"[Bb]float16 is only supported on GPUs with compute capability",
        Blame.CONFIGURATION,
        "bf16 was asked for, and this device, or PyTorch build, cannot do it.",
        "Check that the process sees its GPU (torch.cuda.is_available()); before Ampere use fp16.",
    ),
    signature(
        "tokenizer-without-padding",
        r"Asking to pad but the tokenizer does not have a padding token",
        Blame.CODE,
        "The tokenizer has no token for padding.",
        "Set tokenizer.pad_token = tokenizer.eos_token (and model.config.pad_token_id), or add a "
        "token and resize the embeddings.",
    ),
    signature(
        "data-set-not-built",
        r"An error occurred while generating the dataset",
        Blame.DATA,
        "The datasets library could not read the files of a data set.",
        "The exception above says why: mostly columns that differ between files, an incomplete "
        "download, or a full disk. Remove its folder in HF_DATASETS_CACHE before trying again.",
        general=True,
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
        "deepspeed-batch-size",
        r"Check batch related parameters",
        Blame.CONFIGURATION,
        "The batch sizes in DeepSpeed's configuration do not fit the number of ranks.",
        "train_batch_size must be the micro batch per GPU times accumulation steps times ranks: "
        'leave it out, or set it to "auto" with the Trainer. If the world size is shown as 1, the '
        "ranks were not started by a launcher.",
    ),
    signature(
        "zero3-parameter-partitioned",
        r"'weight' must be 2-D",
        Blame.CODE,
        "A layer was used while its weight was not gathered: with ZeRO-3 or FSDP it is empty "
        "between uses.",
        "Let the model be prepared by deepspeed.initialize or the Trainer, reference and teacher "
        "models too; wrap direct uses in deepspeed.zero.GatheredParameters, or use ZeRO-2.",
    ),
    signature(
        "parallel-sizes",
        r"world_size \(\d+\) is not divisible by|divisible by (?:the )?(?:tensor|pipeline|"
        r"context|expert|data|world)[ _-]?(?:model[ _-])?(?:parallel[ _-])?size",
        Blame.CONFIGURATION,
        "The number of ranks, or a size of the model or batch, does not fit the parallel layout.",
        "The product of tensor, pipeline and context parallel sizes must divide the world size; "
        "heads, vocabulary and sequence length must be divisible by the tensor parallel size.",
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
        r"Error building extension '|ninja: build stopped|'\['ninja', '-v'\S*\]' returned non-zero|"
        r"CUDA_HOME environment variable is not",
        Blame.ENVIRONMENT,
        "A CUDA extension could not be compiled at run time.",
        "Install compiler, ninja and the CUDA toolkit, or build it into the image; many ranks that "
        "compile at once need a TORCH_EXTENSIONS_DIR each.",
    ),
    signature(
        "flash-attention-dtype",
        r"FlashAttention only supports? (?:fp16|bf16)|ValueError: Flash ?Attention[\d. ]* only "
        r"supports? torch\.",
        Blame.CODE,
        "FlashAttention computes in fp16 or bf16 only, and was given fp32.",
        "Load the model with dtype=torch.bfloat16 (torch_dtype in older versions), or train with "
        "bf16 autocast; layers that are kept in fp32 (norms, LoRA) must cast their output.",
    ),
    signature(
        "flash-attention-unsupported",
        r"FlashAttention only supports|flash_attn.*not installed|FlashAttention2 has been toggled",
        Blame.ENVIRONMENT,
        "FlashAttention does not run on this GPU or is not installed.",
        "Use attn_implementation='sdpa', or install the wheel for this PyTorch and CUDA.",
    ),
    signature(
        "adapter-targets-missing",
        r"Target modules .* not found in the base model",
        Blame.CONFIGURATION,
        "PEFT found no layers with the names in target_modules.",
        "Print model.named_modules() and use those names, or target_modules='all-linear'; layers "
        "that were quantized or replaced may be of a class that PEFT does not know.",
    ),
    signature(
        "quantized-without-adapter",
        r"cannot perform fine-tuning on purely quantized models",
        Blame.CONFIGURATION,
        "The weights are quantized, and nothing else was added that could be trained.",
        "Add an adapter (get_peft_model with a LoraConfig) before the Trainer is made, or load the "
        "model without quantization.",
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
        "libdevice-missing",
        r"libdevice not found at|Can't find libdevice directory",
        Blame.ENVIRONMENT,
        "XLA compiles with NVIDIA's libdevice, and does not find it.",
        "Install the CUDA wheels that JAX or TensorFlow ask for (jax[cuda12], "
        "tensorflow[and-cuda]), or set XLA_FLAGS=--xla_gpu_cuda_data_dir to the CUDA toolkit.",
    ),
    signature(
        "grpc-unreachable",
        r"failed to connect to all addresses",
        Blame.NETWORK,
        "A gRPC peer (a task of TensorFlow, JAX's coordinator, Ray) could not be reached.",
        "At the start: check its address and port, and proxy variables (no_proxy). Later: that "
        "process has exited, so look at its output first.",
        general=True,
    ),
    signature(
        "tensorflow-peer-lost",
        r"[Cc]ollective ops is aborted by|CollectiveOps.*(?:abort|peer)|"
        r"Unavailable(?:Error)?: Socket closed|UNAVAILABLE: Socket closed|^Socket closed$|"
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
        "jax-coordinator",
        r"DEADLINE_EXCEEDED: Connect\(\) timed out",
        Blame.NETWORK,
        "A JAX process did not reach the coordinator in time.",
        "Check coordinator_address, that process 0 runs, and that its port is open; let "
        "initialization_timeout be longer where processes start at different times.",
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
        "ssh-refused",
        r"Host key verification failed|Permission denied \((?:publickey|password|gssapi)|"
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        Blame.CONFIGURATION,
        "ssh to another host was refused: its host key is not known, or the user's key is not "
        "accepted.",
        "Test `ssh HOST hostname` from the launcher; add keys with ssh-keyscan, or set "
        "StrictHostKeyChecking=no for hosts that come and go; mount the same key pair everywhere.",
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
        r"MPI_ABORT was invoked on rank|MPI_ERRORS_ARE_FATAL|mpirun noticed that process rank|"
        r"Primary job +terminated normally, but \d+ process|"
        r"mpirun\S* detected that one or more processes exited",
        Blame.CONSEQUENCE,
        "mpirun ends all ranks because one has failed.",
        "Look at the output of the rank that is named.",
    ),
    signature(
        "ucx-retry-exceeded",
        r"Transport retry count exceeded",
        Blame.NETWORK,
        "An InfiniBand or RoCE peer did not acknowledge in time: a link flapped, packets were "
        "lost, or the peer died.",
        "Check `ibstat`, link error counters and the switch port of both nodes, on RoCE also PFC "
        "and ECN. UCX_RC_TIMEOUT and UCX_RC_RETRY_COUNT let short flaps pass.",
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
        "ray-memory",
        r"Task was killed due to the node running low on memory|ray\.exceptions\.OutOfMemoryError|"
        r"killed due to memory pressure \(OOM\)|RayOutOfMemoryError",
        Blame.CONFIGURATION,
        "Ray's memory monitor killed a worker because its node was nearly out of memory.",
        "The message lists what uses the memory. Give the node more, run fewer workers on it (more "
        "CPUs per task), or keep fewer objects; RAY_memory_usage_threshold sets the limit.",
    ),
    signature(
        "ray-worker-lost",
        r"RayActorError|WorkerCrashedError|ray\.exceptions\.\w*DiedError|"
        r"A worker died or was killed|The actor died unexpectedly before finishing this task",
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
        "credentials-expired",
        r"ExpiredToken|RequestExpired|InvalidTokenId|security token included in the request is|"
        r"Reauthentication is needed|invalid_grant: ",
        Blame.CONFIGURATION,
        "The credentials for the object store have expired, or are not valid.",
        "Use a role that renews itself (IRSA, workload identity, an instance profile) instead of "
        "copied session tokens; a job that runs for days outlives those.",
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
