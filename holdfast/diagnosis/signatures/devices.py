"""CUDA, cuDNN, drivers and what the kernel says of GPUs."""

from holdfast.diagnosis.signatures.signature import Blame, signature

DEVICES = (
    signature(
        "gpu-memory",
        r"CUDA out of memory|HIP out of memory|torch\.OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|"
        r"Cuda failure (?:\d+ )?'out of memory'|CUDA error: out of memory|"
        r"(?:XPU|NPU|MPS backend) out of memory",
        Blame.CODE,
        "The GPU has not enough memory for this step.",
        "Use a smaller batch with gradient accumulation, activation checkpointing, bf16 or "
        "sharding (FSDP). If `reserved but unallocated` is large, set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. If it fails after hours, something "
        "keeps tensors alive: collect loss.item(), not loss.",
    ),
    signature(
        "cublas-memory",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        Blame.CODE,
        "cuBLAS could not allocate its workspace: the GPU's memory is full.",
        "As for CUDA out of memory: a smaller batch; leave some memory to libraries.",
    ),
    signature(
        "device-side-assert",
        r"device-side assert triggered|Assertion `.*` failed\.$",
        Blame.DATA,
        "A kernel refused its input, mostly an index or a class label that is out of range.",
        "Run the batch on the CPU, or with CUDA_LAUNCH_BLOCKING=1, to see the line; check labels "
        "against the number of classes and token ids against the vocabulary.",
    ),
    signature(
        "illegal-memory-access",
        r"an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS",
        Blame.CODE,
        "A kernel read or wrote memory that is not its own.",
        "Run with CUDA_LAUNCH_BLOCKING=1 and compute-sanitizer; suspect custom kernels first. If "
        "it only ever happens on one machine, suspect that GPU (XID 31 in `dmesg`).",
    ),
    signature(
        "gpu-kernel-error",
        r"CUDA error: (?:misaligned address|an illegal instruction was encountered|invalid program "
        r"counter|invalid configuration argument)|Error invalid configuration argument at line|"
        r"CUDA_ERROR_(?:MISALIGNED_ADDRESS|ILLEGAL_INSTRUCTION|INVALID_PC)|"
        r"Cuda failure (?:\d+ )?'(?:misaligned address|an illegal instruction was encountered)",
        Blame.CODE,
        "A kernel used an address, an instruction or a size that the GPU refuses.",
        "Run with CUDA_LAUNCH_BLOCKING=1 and compute-sanitizer; suspect custom and Triton kernels, "
        "and builds for another GPU. If the same code only ever fails on one machine, suspect that "
        "GPU (XID 13 in `dmesg`).",
    ),
    signature(
        "nvlink-error",
        r"uncorrectable NVLink error|CUDA_ERROR_NVLINK_UNCORRECTABLE|cudaErrorNvlinkUncorrectable",
        Blame.MACHINE,
        "A link between GPUs (NVLink) had an error that could not be corrected.",
        "Take the machine out of service; `nvidia-smi nvlink -e` shows the link and XID 74 or 144 "
        "to 150 in `dmesg` the GPU. Reset the GPUs at both ends; if it returns, have the GPU, its "
        "baseboard or the NVSwitch replaced.",
    ),
    signature(
        "gpu-ecc-error",
        r"uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE",
        Blame.MACHINE,
        "The GPU's memory is damaged: an error that could not be corrected.",
        "Take the machine out of service, reset the GPU, look at remapped rows "
        "(`nvidia-smi -q -d ROW_REMAPPER`), and replace it if it recurs.",
    ),
    signature(
        "gpu-fell-off-the-bus",
        r"fallen off the bus|GPU is lost|Unable to determine the device handle for GPU|Xid.*: 79,",
        Blame.MACHINE,
        "The GPU does not answer any more (XID 79).",
        "Take the machine out of service; check power and PCIe seating. A reboot may help.",
    ),
    signature(
        "gpu-xid-cleanup",
        r"NVRM: Xid \([^)]*\): 45,|NVRM: Xid .*caused by previous Xid",
        Blame.CONSEQUENCE,
        "The driver ended what ran on a GPU, because of an earlier error or because its process "
        "was killed (XID 45).",
        "Look for the first other XID before it in `dmesg`, on any GPU of the machine.",
    ),
    signature(
        "gpu-xid-program",
        r"NVRM: Xid \([^)]*\): (?:13|31|43|69),",
        Blame.CODE,
        "The driver reported that a program did what the GPU refuses: mostly an illegal address.",
        "Treat it as an illegal memory access of the process that is named: CUDA_LAUNCH_BLOCKING=1 "
        "and compute-sanitizer. If other programs have it on this GPU, too, run `dcgmi diag -r 3`.",
        general=True,
    ),
    signature(
        "gpu-xid",
        r"NVRM: Xid \(",
        Blame.MACHINE,
        "The driver reported an error of a GPU.",
        "Look up the number in NVIDIA's XID catalogue: 63, 92 and 121 only inform; 48, 62, 64, 74, "
        "79, 95, 119, 120 and 140 ask for a reset, a reboot or another GPU.",
    ),
    signature(
        "gpu-not-initialised",
        r"NVRM: .*(?:RmInitAdapter|rm_init_adapter) failed",
        Blame.MACHINE,
        "The driver could not bring up a GPU.",
        "Reset the GPU or reboot; if it comes again, take the machine out of service.",
    ),
    signature(
        "gpu-launch-timeout",
        r"the launch timed out and was terminated|CUDA_ERROR_LAUNCH_TIMEOUT",
        Blame.CONFIGURATION,
        "A kernel ran longer than the driver allows.",
        "A GPU that also drives a display has such a limit: use another one, or shorter kernels. "
        "On a server without a display suspect the GPU.",
    ),
    signature(
        "gpu-launch-failure",
        r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED",
        Blame.CODE,
        "A kernel died without a reason being given: mostly it used an invalid pointer.",
        "Run with CUDA_LAUNCH_BLOCKING=1 and compute-sanitizer; look for XID messages in `dmesg`. "
        "If the same code runs elsewhere, suspect this GPU.",
    ),
    signature(
        "no-kernel-image",
        r"no kernel image is available for execution|not compatible with the current PyTorch "
        r"installation|ptxas fatal +: Value 'sm_\w+' is not defined|invalid value for "
        r"--gpu-architecture",
        Blame.ENVIRONMENT,
        "PyTorch, or an extension, was built for other GPUs than this one.",
        "Install a build whose list of architectures has this GPU "
        "(torch.cuda.get_arch_list()), and rebuild extensions with TORCH_CUDA_ARCH_LIST.",
    ),
    signature(
        "driver-too-old",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient|"
        r"PTX was compiled with an unsupported toolchain|CUDA_ERROR_UNSUPPORTED_PTX_VERSION|"
        r"not supported in the installed CUDA driver|unsatisfied condition: (?:cuda|driver)\W",
        Blame.ENVIRONMENT,
        "The driver of the machine is older than the CUDA runtime of the image needs.",
        "Update the driver, use an image with an older CUDA, or install the forward-compatibility "
        "package.",
    ),
    signature(
        "driver-unsupported",
        r"unsupported display driver|forward compatibility was attempted on non supported HW",
        Blame.ENVIRONMENT,
        "The CUDA library of the image and the driver of the machine do not work together.",
        "Remove the cuda-compat package or its folder from LD_LIBRARY_PATH, if the driver is new "
        "enough or the GPU is no data center GPU; else update the driver.",
    ),
    signature(
        "driver-mismatch",
        r"Driver/library version mismatch",
        Blame.MACHINE,
        "The driver was updated while its old kernel module was loaded.",
        "Reboot the machine, or reload the nvidia modules with nothing using them.",
    ),
    signature(
        "container-no-driver",
        r"nvidia-container-cli: initialization error",
        Blame.MACHINE,
        "The container runtime could not reach the NVIDIA driver of the machine.",
        "Run `nvidia-smi` on the machine: the driver is not installed, not loaded after a kernel "
        "update, or hangs. Reload or install it, or reboot.",
    ),
    signature(
        "gpu-not-allocatable",
        r"Allocate failed due to requested number of devices unavailable",
        Blame.CONFIGURATION,
        "The kubelet has fewer usable GPUs than the scheduler believed, so it refused the pod.",
        "Right after a reboot or a restart of the kubelet the device plugin is not ready yet: let "
        "the pod be made again. If it stays: `kubectl describe node`, and the log of the device "
        "plugin for GPUs that it calls unhealthy.",
    ),
    signature(
        "no-driver",
        r"Found no NVIDIA driver on your system|CUDA_ERROR_NO_DEVICE|no CUDA-capable device is "
        r"detected|No CUDA GPUs are available|libcuda\.so\.1: cannot open shared object file|"
        r"CUDA device but torch\.cuda\.is_available\(\) is False",
        Blame.CONFIGURATION,
        "The process sees no GPU at all.",
        "In a container: request nvidia.com/gpu (or --gpus all) and use the NVIDIA runtime; check "
        "CUDA_VISIBLE_DEVICES; on the host run `nvidia-smi`.",
    ),
    signature(
        "torch-without-cuda",
        r"Torch not compiled with CUDA enabled",
        Blame.ENVIRONMENT,
        "The script wants a GPU, and the PyTorch that is installed was built for the CPU only.",
        "Install a build for the CUDA of the driver; a package that was installed later may have "
        "replaced it (`python -m torch.utils.collect_env`).",
    ),
    signature(
        "device-ordinal",
        r"invalid device ordinal|on CUDA device \d+ but torch\.cuda\.device_count\(\) is|"
        r"device < num_gpus INTERNAL ASSERT FAILED",
        Blame.CODE,
        "The script asks for a GPU number that this process does not see.",
        "Use LOCAL_RANK, not RANK, for set_device; workers_per_node must not exceed the number of "
        "GPUs, and CUDA_VISIBLE_DEVICES may hide some.",
    ),
    signature(
        "gpu-busy",
        r"CUDA-capable device(?:s|\(s\))? (?:is/are|is|are) busy or unavailable",
        Blame.CONFIGURATION,
        "Another process has the GPU for itself, or the GPU is in an error state.",
        "Look at `nvidia-smi` for processes left over and for compute mode E. Process, and at "
        "`dmesg` for NV_ERR_RESET_REQUIRED: such a GPU must be reset.",
    ),
    signature(
        "fabric-manager",
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY",
        Blame.MACHINE,
        "The NVSwitch fabric of the machine is not up.",
        "Start nvidia-fabricmanager in the version of the driver; look at its log.",
    ),
    signature(
        "cuda-unknown-error",
        r"CUDA unknown error|CUDA error: unknown error|Cuda failure 999",
        Blame.ENVIRONMENT,
        "CUDA could not be initialised.",
        "Do not change CUDA_VISIBLE_DEVICES after the first use; compare driver and CUDA. Else "
        "reload nvidia_uvm or reboot the machine.",
    ),
    signature(
        "cudnn-version",
        r"CUDNN_STATUS_(?:SUBLIBRARY_)?VERSION_MISMATCH|cuDNN version incompatibility|"
        r"Loaded runtime CuDNN library: .* but source was compiled with",
        Blame.ENVIRONMENT,
        "Parts of cuDNN of two versions are loaded, or another one than the program was built for.",
        "Look for a libcudnn in LD_LIBRARY_PATH besides the one that PyTorch brings, and reinstall "
        "nvidia-cudnn in the version that PyTorch asks for.",
    ),
    signature(
        "cudnn-error",
        r"CUDNN_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED|MAPPING_ERROR|BAD_PARAM|"
        r"NOT_SUPPORTED|ALLOC_FAILED)|Unable to find a valid cuDNN algorithm|"
        r"(?:GET|FIND) was unable to find an engine to execute this computation|"
        r"RET_CHECK failure .*dnn != nullptr",
        Blame.ENVIRONMENT,
        "cuDNN could not start or run: mostly out of memory, or its version does not fit.",
        "Try a smaller batch; look for a second libcudnn in LD_LIBRARY_PATH; check the GPU.",
    ),
    signature(
        "cublas-error",
        r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED|INVALID_VALUE|"
        r"NOT_SUPPORTED|ARCH_MISMATCH)",
        Blame.CODE,
        "A matrix product failed: mostly the consequence of an earlier error of the device.",
        "Run with CUDA_LAUNCH_BLOCKING=1; an index out of range before it is the usual reason. "
        "NOT_SUPPORTED: bf16 or fp8 on a GPU without it, tensors of size 0, or a second libcublas "
        "in LD_LIBRARY_PATH.",
    ),
    signature(
        "cuda-in-forked-process",
        r"Cannot re-initialize CUDA in forked subprocess|CUDA error: initialization error",
        Blame.CODE,
        "A process was forked after CUDA had been used, and uses it again.",
        "Use the start method spawn or forkserver, and keep CUDA out of data set code.",
    ),
    signature(
        "triton-resources",
        r"(?:triton\.\S*|InductorError: .*)OutOfResources: out of resource",
        Blame.CODE,
        "A Triton kernel needs more shared memory, threads or registers than this GPU has.",
        "Use smaller block sizes or fewer num_stages, or a version of the library that knows this "
        "GPU; kernels that were tuned for data center GPUs often do not fit others.",
    ),
    signature(
        "compile-toolchain",
        r"Failed to find C compiler|ld: cannot find -lcuda\b|fatal error: (?:Python|cuda)\.h: No "
        r"such file",
        Blame.ENVIRONMENT,
        "torch.compile or Triton compiles at run time, and the compiler or a file that it needs is "
        "missing.",
        "Install gcc and the headers of Python (python3-dev) into the image; for -lcuda let "
        "libcuda.so be found (ldconfig, LIBRARY_PATH). Or train without torch.compile.",
    ),
    signature(
        "compile-failed",
        r"torch\._dynamo\.exc\.\w+|BackendCompilerFailed|torch\._inductor\.exc\.\w+",
        Blame.CODE,
        "torch.compile could not compile the model.",
        "Run with TORCHDYNAMO_VERBOSE=1 to see the line; exclude that function with "
        "torch.compiler.disable, or train without torch.compile to confirm.",
    ),
)
