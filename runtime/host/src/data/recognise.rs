//! Says what a file is that is no safetensors file, by its first bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The first bytes of files that are taken for others, what they are, and what to do.
const KNOWN: [(&[u8], &str); 5] = [
    (
        b"PK\x03\x04",
        "it is a zip archive, as torch.save and numpy.savez write: save tensors with safetensors.torch.save_file or \
         safetensors.numpy.save_file",
    ),
    (b"\x80\x02", "it is a Python pickle: save tensors with safetensors.torch.save_file"),
    (b"\x93NUMPY", "it is one array of NumPy: save it with safetensors.numpy.save_file"),
    (b"\x89HDF", "it is an HDF5 file: save its arrays with safetensors.numpy.save_file"),
    (b"{", "it is text in JSON, as plans are"),
];

/// Describes the fault of a file that should be a safetensors file: what it is instead, or else the reason why it cannot be read as one.
pub(super) fn describe_fault(file: &File, reason: &dyn std::fmt::Display) -> String {
    let mut first = [0; 8];
    let read = file.read_at(&mut first, 0).unwrap_or(0);
    let known = KNOWN.iter().find(|(begins, _)| first[..read].starts_with(begins));
    match known {
        Some((_, what)) => format!("it is no safetensors file: {what}"),
        None => format!("it is no valid safetensors file: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::data::{TensorFile, load_safetensors};

    #[test]
    fn files_of_others_are_recognised() {
        let folder = tempfile::tempdir().expect("a folder");
        let cases: [(&[u8], &str); 4] = [
            (b"PK\x03\x04\x00\x00\x08\x08\x00\x00", "it is a zip archive, as torch.save"),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "it is a Python pickle"),
            (b"{\"format\": \"graphc-plan\"}", "it is text in JSON, as plans are"),
            (b"ordinary words of a text", "it is no valid safetensors file"),
        ];
        for (bytes, expected) in cases {
            let path = folder.path().join("weights.pt");
            std::fs::write(&path, bytes).expect("it is writable");
            let whole = load_safetensors(&path).expect_err("it is another file").to_string();
            let by_rows = TensorFile::open(&path).expect_err("it is another file").to_string();
            for error in [whole, by_rows] {
                assert!(error.contains("weights.pt") && error.contains(expected), "{error}");
            }
        }
    }
}
