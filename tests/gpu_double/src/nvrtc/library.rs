//! NVRTC's functions, by their names.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

/// A program of NVRTC.
pub type Handle = *mut c_void;

/// The opened library.
pub struct Library {
    handle: *mut c_void,
}

// SAFETY: a handle of the dynamic linker, which may be used by all threads, and is never closed.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens the compiler, and what it opens itself by a name that it would not find.
    pub fn open(path: &Path) -> Option<Library> {
        let folder = path.parent()?;
        for entry in std::fs::read_dir(folder).ok()?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so") {
                dlopen(&entry.path());
            }
        }
        dlopen(path).map(|handle| Library { handle })
    }

    /// A function, as the caller says what it is.
    ///
    /// # Safety
    /// `F` must be the type of the pointer to the function of that name.
    pub unsafe fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        // SAFETY: the handle is open.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "F is the type of a pointer");
        // SAFETY: the caller answers for the type; sizes are the same.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
    }
}

/// The flag that binds names which the double has, too, to the library's own functions. Other systems bind names so in any case.
#[cfg(target_os = "linux")]
const DEEP: c_int = libc::RTLD_DEEPBIND;
#[cfg(not(target_os = "linux"))]
const DEEP: c_int = 0;

fn dlopen(path: &Path) -> Option<*mut c_void> {
    let name = CString::new(path.to_string_lossy().as_bytes()).ok()?;
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | DEEP;
    // SAFETY: a library of NVIDIA's, whose initializers are the system's business.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    (!handle.is_null()).then_some(handle)
}

type Create = unsafe extern "C" fn(
    *mut Handle,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Handle) -> c_int;

/// A source that is compiled.
pub struct Program<'a> {
    library: &'a Library,
    handle: Handle,
}

impl Program<'_> {
    /// A program of one source.
    pub fn new<'a>(library: &'a Library, source: &CStr) -> Option<Program<'a>> {
        let mut handle = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: NVRTC's own declaration, and texts that live through the call.
        let code = unsafe {
            let create = library.function::<Create>(c"nvrtcCreateProgram")?;
            create(&mut handle, source.as_ptr(), c"kernel.cu".as_ptr(), 0, none, none)
        };
        (code == 0).then_some(Program { library, handle })
    }

    /// Compiles; NVRTC's result.
    pub fn compile(&self, options: &[*const c_char]) -> c_int {
        // SAFETY: NVRTC's own declaration; the options live through the call.
        unsafe {
            let compile = self.library.function::<Compile>(c"nvrtcCompileProgram");
            let count = options.len() as c_int;
            compile.map_or(super::MISSING, |f| f(self.handle, count, options.as_ptr()))
        }
    }

    /// Returns the PTX that was made.
    pub fn ptx(&self) -> String {
        self.text(c"nvrtcGetPTXSize", c"nvrtcGetPTX").unwrap_or_default()
    }

    /// Returns the compiler's messages.
    pub fn log(&self) -> String {
        self.text(c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog").unwrap_or_default()
    }

    fn text(&self, size: &CStr, text: &CStr) -> Option<String> {
        text_of(self.library, self.handle, size, text)
    }
}

/// A text of a program, whose size another function tells.
pub fn text_of(library: &Library, handle: Handle, size: &CStr, text: &CStr) -> Option<String> {
    let mut bytes = 0;
    // SAFETY: NVRTC's own declarations; the buffer has the size that it asks for.
    let buffer = unsafe {
        if library.function::<Size>(size)?(handle, &mut bytes) != 0 {
            return None;
        }
        let mut buffer = vec![0u8; bytes];
        let code = library.function::<Text>(text)?(handle, buffer.as_mut_ptr().cast());
        (code == 0).then_some(buffer)?
    };
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(buffer.len());
    Some(String::from_utf8_lossy(&buffer[..end]).into_owned())
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: NVRTC's own declaration; the handle is open.
        unsafe {
            if let Some(destroy) = self.library.function::<Destroy>(c"nvrtcDestroyProgram") {
                destroy(&mut self.handle);
            }
        }
    }
}
