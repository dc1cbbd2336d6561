//! Results of driver calls, by the numbers and names that CUDA gives them.

/// A result of a driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Code {
    Success = 0,
    InvalidValue = 1,
    OutOfMemory = 2,
    NotInitialized = 3,
    InvalidDevice = 101,
    InvalidImage = 200,
    InvalidContext = 201,
    AlreadyMapped = 208,
    NoBinaryForGpu = 209,
    PeerAccessUnsupported = 217,
    InvalidPtx = 218,
    InvalidHandle = 400,
    NotFound = 500,
    NotReady = 600,
    IllegalAddress = 700,
    LaunchOutOfResources = 701,
    PeerAccessAlreadyEnabled = 704,
    PeerAccessNotEnabled = 705,
    ContextIsDestroyed = 709,
    HostMemoryAlreadyRegistered = 712,
    HostMemoryNotRegistered = 713,
    MisalignedAddress = 716,
    LaunchFailed = 719,
    NotSupported = 801,
    CaptureUnsupported = 900,
    CaptureInvalidated = 901,
    CaptureMerge = 902,
    CaptureUnmatched = 903,
    CaptureUnjoined = 904,
    CaptureIsolation = 905,
    CaptureImplicit = 906,
    CapturedEvent = 907,
    CaptureWrongThread = 908,
}

/// All codes with their names and what they mean, both ended by a zero byte as C wants them.
pub const TEXTS: [(Code, &str, &str); 33] = [
    (Code::Success, "CUDA_SUCCESS\0", "no error\0"),
    (Code::InvalidValue, "CUDA_ERROR_INVALID_VALUE\0", "invalid argument\0"),
    (Code::OutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY\0", "out of memory\0"),
    (Code::NotInitialized, "CUDA_ERROR_NOT_INITIALIZED\0", "initialization error\0"),
    (Code::InvalidDevice, "CUDA_ERROR_INVALID_DEVICE\0", "invalid device ordinal\0"),
    (Code::InvalidImage, "CUDA_ERROR_INVALID_IMAGE\0", "device kernel image is invalid\0"),
    (Code::InvalidContext, "CUDA_ERROR_INVALID_CONTEXT\0", "invalid device context\0"),
    (Code::AlreadyMapped, "CUDA_ERROR_ALREADY_MAPPED\0", "resource already mapped\0"),
    (Code::NoBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU\0", "no kernel image for the device\0"),
    (
        Code::PeerAccessUnsupported,
        "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED\0",
        "peer access is not supported between these two devices\0",
    ),
    (Code::InvalidPtx, "CUDA_ERROR_INVALID_PTX\0", "a PTX JIT compilation failed\0"),
    (Code::InvalidHandle, "CUDA_ERROR_INVALID_HANDLE\0", "invalid resource handle\0"),
    (Code::NotFound, "CUDA_ERROR_NOT_FOUND\0", "named symbol not found\0"),
    (Code::NotReady, "CUDA_ERROR_NOT_READY\0", "device not ready\0"),
    (
        Code::IllegalAddress,
        "CUDA_ERROR_ILLEGAL_ADDRESS\0",
        "an illegal memory access was encountered\0",
    ),
    (
        Code::LaunchOutOfResources,
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES\0",
        "too many resources requested for launch\0",
    ),
    (
        Code::PeerAccessAlreadyEnabled,
        "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED\0",
        "peer access is already enabled\0",
    ),
    (
        Code::PeerAccessNotEnabled,
        "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED\0",
        "peer access has not been enabled\0",
    ),
    (Code::ContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED\0", "context is destroyed\0"),
    (
        Code::HostMemoryAlreadyRegistered,
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED\0",
        "part or all of the requested memory range is already mapped\0",
    ),
    (
        Code::HostMemoryNotRegistered,
        "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED\0",
        "pointer does not correspond to a registered memory region\0",
    ),
    (Code::MisalignedAddress, "CUDA_ERROR_MISALIGNED_ADDRESS\0", "misaligned address\0"),
    (Code::LaunchFailed, "CUDA_ERROR_LAUNCH_FAILED\0", "unspecified launch failure\0"),
    (Code::NotSupported, "CUDA_ERROR_NOT_SUPPORTED\0", "operation not supported\0"),
    (
        Code::CaptureUnsupported,
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED\0",
        "operation not permitted when stream is capturing\0",
    ),
    (
        Code::CaptureInvalidated,
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED\0",
        "operation failed due to a previous error during capture\0",
    ),
    (
        Code::CaptureMerge,
        "CUDA_ERROR_STREAM_CAPTURE_MERGE\0",
        "operation would result in a merge of separate capture sequences\0",
    ),
    (
        Code::CaptureUnmatched,
        "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED\0",
        "capture was not ended in the same stream as it began\0",
    ),
    (
        Code::CaptureUnjoined,
        "CUDA_ERROR_STREAM_CAPTURE_UNJOINED\0",
        "capturing stream has unjoined work\0",
    ),
    (
        Code::CaptureIsolation,
        "CUDA_ERROR_STREAM_CAPTURE_ISOLATION\0",
        "dependency created on uncaptured work in another stream\0",
    ),
    (
        Code::CaptureImplicit,
        "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT\0",
        "operation would make the legacy stream depend on a capturing blocking stream\0",
    ),
    (
        Code::CapturedEvent,
        "CUDA_ERROR_CAPTURED_EVENT\0",
        "operation not permitted on an event last recorded in a capturing stream\0",
    ),
    (
        Code::CaptureWrongThread,
        "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD\0",
        "attempt to terminate a thread-local capture sequence from another thread\0",
    ),
];
