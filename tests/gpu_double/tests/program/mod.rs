//! A program that opens the driver and the compiler by their names, as any does.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// A kernel that adds `x` to `y`.
pub const KERNELS: &str =
    "extern \"C\" __global__ void add(const float *x, float *y, long long n) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += x[i];
}";

type Handle = *mut c_void;
type Result<T> = std::result::Result<T, i32>;

pub struct Cuda {
    driver: Handle,
    compiler: Handle,
}

fn open(name: &CStr) -> Handle {
    // SAFETY: the double, by the name that the folder of LD_LIBRARY_PATH gives it.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{name:?} is not found");
    handle
}

/// Calls a function of a library by name, with arguments as C has them.
macro_rules! call {
    ($library:expr, $name:literal ( $($argument:expr => $type:ty),* )) => {{
        // SAFETY: NVIDIA's declarations of these functions.
        unsafe {
            let symbol = libc::dlsym($library, $name.as_ptr());
            assert!(!symbol.is_null(), "{:?} is missing", $name);
            let function: unsafe extern "C" fn($($type),*) -> c_int = std::mem::transmute(symbol);
            match function($($argument),*) {
                0 => Ok(()),
                code => Err(code),
            }
        }
    }};
}

impl Cuda {
    /// Opens both libraries and uses card 0.
    pub fn open() -> Cuda {
        let cuda = Cuda { driver: open(c"libcuda.so.1"), compiler: open(c"libnvrtc.so.13") };
        call!(cuda.driver, c"cuInit"(0 => u32)).unwrap();
        cuda.use_card(0);
        cuda
    }

    pub fn use_card(&self, card: c_int) {
        let mut context = null_mut();
        call!(self.driver, c"cuDevicePrimaryCtxRetain"(&mut context => *mut Handle, card => c_int))
            .unwrap();
        call!(self.driver, c"cuCtxSetCurrent"(context => Handle)).unwrap();
    }

    /// Compiles and loads a source, by way of what stands for machine code.
    pub fn module(&self, source: &str) -> Handle {
        self.load(&self.compile(source)).unwrap()
    }

    fn compile(&self, source: &str) -> Vec<u8> {
        let (mut program, source) = (null_mut(), CString::new(source).unwrap());
        let options = [c"--gpu-architecture=sm_90".as_ptr()];
        let none: *const *const c_char = null();
        call!(self.compiler, c"nvrtcCreateProgram"(
            &mut program => *mut Handle,
            source.as_ptr() => *const c_char,
            null() => *const c_char,
            0 => c_int,
            none => *const *const c_char,
            none => *const *const c_char
        ))
        .unwrap();
        call!(self.compiler, c"nvrtcCompileProgram"(
            program => Handle, 1 => c_int, options.as_ptr() => *const *const c_char
        ))
        .unwrap();
        let mut size = 0usize;
        call!(self.compiler, c"nvrtcGetCUBINSize"(program => Handle, &mut size => *mut usize))
            .unwrap();
        let mut image = vec![0u8; size];
        call!(self.compiler, c"nvrtcGetCUBIN"(program => Handle, image.as_mut_ptr() => *mut u8))
            .unwrap();
        call!(self.compiler, c"nvrtcDestroyProgram"(&mut program => *mut Handle)).unwrap();
        image
    }

    pub fn load(&self, image: &[u8]) -> Result<Handle> {
        let mut module = null_mut();
        call!(self.driver, c"cuModuleLoadData"(
            &mut module => *mut Handle, image.as_ptr() => *const u8
        ))
        .map(|()| module)
    }

    pub fn function(&self, module: Handle, name: &str) -> Handle {
        let (mut function, name) = (null_mut(), CString::new(name).unwrap());
        call!(self.driver, c"cuModuleGetFunction"(
            &mut function => *mut Handle, module => Handle, name.as_ptr() => *const c_char
        ))
        .unwrap();
        function
    }

    /// A stream that does not wait for the default stream.
    pub fn stream(&self) -> Handle {
        let mut stream = null_mut();
        call!(self.driver, c"cuStreamCreate"(&mut stream => *mut Handle, 1 => u32)).unwrap();
        stream
    }

    pub fn synchronize(&self, stream: Handle) -> Result<()> {
        call!(self.driver, c"cuStreamSynchronize"(stream => Handle))
    }

    pub fn allocate(&self, bytes: usize) -> Result<u64> {
        let mut address = 0;
        call!(self.driver, c"cuMemAlloc_v2"(&mut address => *mut u64, bytes => usize))
            .map(|()| address)
    }

    pub fn free(&self, address: u64) -> Result<()> {
        call!(self.driver, c"cuMemFree_v2"(address => u64))
    }

    /// Fresh memory with these numbers.
    pub fn upload(&self, stream: Handle, values: &[f32]) -> u64 {
        let bytes = size_of_val(values);
        let address = self.allocate(bytes).unwrap();
        call!(self.driver, c"cuMemcpyHtoDAsync_v2"(
            address => u64, values.as_ptr() => *const f32, bytes => usize, stream => Handle
        ))
        .unwrap();
        address
    }

    /// Writes numbers by a call that takes its memory of the host, whether or not the copy has ended.
    pub fn write(&self, address: u64, values: &[f32]) -> Result<()> {
        call!(self.driver, c"cuMemcpyHtoD_v2"(
            address => u64, values.as_ptr() => *const f32, size_of_val(values) => usize
        ))
    }

    pub fn download(&self, stream: Handle, address: u64, count: usize) -> Result<Vec<f32>> {
        let mut values = vec![0f32; count];
        call!(self.driver, c"cuMemcpyDtoHAsync_v2"(
            values.as_mut_ptr() => *mut f32, address => u64, 4 * count => usize, stream => Handle
        ))?;
        Ok(values)
    }

    /// Pinned memory for so many numbers.
    pub fn pinned(&self, count: usize) -> &'static mut [f32] {
        let mut place: *mut f32 = null_mut();
        call!(self.driver, c"cuMemHostAlloc"(
            &mut place => *mut *mut f32, 4 * count => usize, 0 => u32
        ))
        .unwrap();
        // SAFETY: fresh memory of that size, which no test frees.
        unsafe { std::slice::from_raw_parts_mut(place, count) }
    }

    pub fn copy_from_pinned(&self, to: u64, from: &[f32], stream: Handle) -> Result<()> {
        call!(self.driver, c"cuMemcpyHtoDAsync_v2"(
            to => u64, from.as_ptr() => *const f32, size_of_val(from) => usize, stream => Handle
        ))
    }

    /// Sets so many numbers to 0.
    pub fn fill(&self, address: u64, count: usize, stream: Handle) -> Result<()> {
        call!(self.driver, c"cuMemsetD32Async"(
            address => u64, 0 => u32, count => usize, stream => Handle
        ))
    }

    /// Launches a kernel of one block of 128 threads, whose arguments are all of 8 bytes.
    pub fn launch(&self, function: Handle, stream: Handle, arguments: &[u64]) -> Result<()> {
        let places: Vec<*const u64> =
            arguments.iter().map(|argument| &raw const *argument).collect();
        call!(self.driver, c"cuLaunchKernel"(
            function => Handle,
            1 => u32, 1 => u32, 1 => u32,
            128 => u32, 1 => u32, 1 => u32,
            0 => u32,
            stream => Handle,
            places.as_ptr() => *const *const u64,
            null() => *const Handle
        ))
    }

    pub fn event(&self) -> Handle {
        let mut event = null_mut();
        call!(self.driver, c"cuEventCreate"(&mut event => *mut Handle, 2 => u32)).unwrap();
        event
    }

    pub fn record(&self, event: Handle, stream: Handle) {
        call!(self.driver, c"cuEventRecord"(event => Handle, stream => Handle)).unwrap();
    }

    pub fn wait(&self, stream: Handle, event: Handle) {
        call!(self.driver, c"cuStreamWaitEvent"(stream => Handle, event => Handle, 0 => u32))
            .unwrap();
    }

    pub fn begin_capture(&self, stream: Handle) -> Result<()> {
        call!(self.driver, c"cuStreamBeginCapture_v2"(stream => Handle, 1 => c_int))
    }

    pub fn end_capture(&self, stream: Handle) -> Result<Handle> {
        let mut graph = null_mut();
        call!(self.driver, c"cuStreamEndCapture"(stream => Handle, &mut graph => *mut Handle))
            .map(|()| graph)
    }

    pub fn nodes(&self, graph: Handle) -> usize {
        let mut count = 0;
        call!(self.driver, c"cuGraphGetNodes"(
            graph => Handle, null_mut() => *mut Handle, &mut count => *mut usize
        ))
        .unwrap();
        count
    }

    pub fn instantiate(&self, graph: Handle) -> Handle {
        let mut executable = null_mut();
        call!(self.driver, c"cuGraphInstantiateWithFlags"(
            &mut executable => *mut Handle, graph => Handle, 0 => u64
        ))
        .unwrap();
        executable
    }

    pub fn launch_graph(&self, executable: Handle, stream: Handle) -> Result<()> {
        call!(self.driver, c"cuGraphLaunch"(executable => Handle, stream => Handle))
    }

    pub fn call_back(&self, stream: Handle, function: extern "C" fn(Handle)) {
        call!(self.driver, c"cuLaunchHostFunc"(
            stream => Handle, function => extern "C" fn(Handle), null_mut() => Handle
        ))
        .unwrap();
    }
}
