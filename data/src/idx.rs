//! IDX files, the format of MNIST: a magic number that tells the element type and the number of dims, then the dims, then the elements.

use std::path::{Path, PathBuf};

use crate::content::FileContent;
use crate::error::DatasetError;

/// A file of bytes (element type 8) with `N` dims.
pub(crate) struct Idx<const N: usize> {
    pub(crate) content: FileContent,
    pub(crate) dims: [usize; N],
    /// The position of the first element.
    pub(crate) data: u64,
}

impl<const N: usize> Idx<N> {
    /// Opens the first of these files that exists, plain or as gzip with `.gz` behind its name.
    ///
    /// # Errors
    /// Returns an error if none exists, or if it is not an IDX file of bytes with `N` dims.
    pub(crate) fn open(names: [PathBuf; 2], layout: &'static str) -> Result<Self, DatasetError> {
        let packed = |path: &Path| PathBuf::from(format!("{}.gz", path.display()));
        let plain = names.iter().find(|path| path.exists());
        let content =
            match (plain, names.iter().map(|path| packed(path)).find(|path| path.exists())) {
                (None, Some(packed)) => FileContent::unpack(&packed, layout)?,
                (plain, _) => FileContent::open(plain.unwrap_or(&names[0]), layout)?,
            };
        Self::from_content(content, layout)
    }

    fn from_content(content: FileContent, layout: &'static str) -> Result<Self, DatasetError> {
        let magic = [0, 0, 8, N as u8];
        let data = 4 + 4 * N as u64;
        let mut head = vec![0; data as usize];
        if content.bytes() < data {
            let reason = format!("it has {} bytes, fewer than its head", content.bytes());
            return Err(content.damaged_error(reason, layout));
        }
        content.read_at(0, &mut head)?;
        if head[..4] != magic {
            let reason = format!("it begins with {:02x?}, not with {magic:02x?}", &head[..4]);
            return Err(content.damaged_error(reason, layout));
        }
        let mut dims = [0; N];
        for (dim, word) in dims.iter_mut().zip(head[4..].as_chunks::<4>().0) {
            *dim = u32::from_be_bytes(*word) as usize;
        }
        let elements = dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim as u64));
        let expected = elements.and_then(|elements| elements.checked_add(data));
        if expected != Some(content.bytes()) || elements == Some(0) {
            let bytes = content.bytes();
            let reason = format!("it has {bytes} bytes where its head says {dims:?} elements");
            return Err(content.damaged_error(reason, layout));
        }
        Ok(Self { content, dims, data })
    }
}
