//! Numbers of a training as event files, which TensorBoard reads.
//!
//! An event file is a row of records, each with its length and checksums (CRC-32C, masked): TensorFlow's
//! `core/lib/io/record_writer.h`. A record holds an event, a message of `core/util/event.proto`: the version of the format, the
//! beginning of a session, or numbers of a step by name. Of these messages the few fields that are needed are written here.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crc::{CRC_32_ISCSI, Crc};

use super::HostFileError;
use super::files::{append_whole, make_folder, write_error};

/// The checksum of records.
const CHECKSUM: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// The version of the format, which the first event says.
const VERSION: &str = "brain.Event:2";

/// Writes numbers of steps to an event file of its own in a folder. Every event reaches the file at once, so that TensorBoard can follow.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Creates an event file in a folder, which is made if it is missing. What other event files there hold of `first_step` and later steps
    /// TensorBoard no longer shows, as of a training that was killed behind its last checkpoint.
    ///
    /// # Errors
    /// Returns an error if the folder or the file cannot be written.
    pub fn create(folder: &Path, first_step: u64) -> Result<Self, HostFileError> {
        make_folder(folder).map_err(|e| write_error(folder, &e))?;
        let now = seconds_now();
        let process = std::process::id();
        // TensorBoard reads files by name: later ones behind earlier ones.
        let name =
            |at: usize| format!("events.out.tfevents.{:010}.graphc.{process}.{at}", now as u64);
        let mut at = 0;
        let (path, file) = loop {
            let path = folder.join(name(at));
            match File::create_new(&path) {
                Ok(file) => break (path, file),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => at += 1,
                Err(error) => return Err(write_error(&path, &error)),
            }
        };
        let mut writer = Self { path, file };
        writer.write_event(&encode_event(now, 0, &text_field(3, VERSION)))?;
        // `SessionLog`, whose status is START.
        writer.write_event(&encode_event(now, first_step, &bytes_field(7, &int_field(1, 1))))?;
        Ok(writer)
    }

    /// Writes numbers of a step by name, as `loss` or `eval/loss`. They are rounded to f32.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written. What it held stays readable.
    pub fn write(&mut self, step: u64, numbers: &[(String, f64)]) -> Result<(), HostFileError> {
        let summary: Vec<u8> =
            numbers.iter().flat_map(|(name, number)| encode_value(name, *number)).collect();
        self.write_event(&encode_event(seconds_now(), step, &bytes_field(5, &summary)))
    }

    fn write_event(&mut self, event: &[u8]) -> Result<(), HostFileError> {
        append_whole(&mut self.file, &self.path, &encode_record(event))
    }
}

fn seconds_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// An event at a time, in seconds since 1970, of a step, with one more field.
fn encode_event(time: f64, step: u64, field: &[u8]) -> Vec<u8> {
    // A field that is 0 is not written.
    let step = if step == 0 { Vec::new() } else { int_field(2, step) };
    [&[1 << 3 | FIXED_64], &time.to_le_bytes()[..], &step, field].concat()
}

/// The field of a summary that holds a number with its name.
fn encode_value(name: &str, number: f64) -> Vec<u8> {
    let number = (number as f32).to_le_bytes();
    let value = [text_field(1, name), [&[2 << 3 | FIXED_32], &number[..]].concat()].concat();
    bytes_field(1, &value)
}

/// Wire types of protocol buffers.
const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const LENGTH: u8 = 2;
const FIXED_32: u8 = 5;

fn int_field(number: u8, value: u64) -> Vec<u8> {
    [vec![number << 3 | VARINT], varint(value)].concat()
}

fn text_field(number: u8, text: &str) -> Vec<u8> {
    bytes_field(number, text.as_bytes())
}

fn bytes_field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | LENGTH], &varint(bytes.len() as u64)[..], bytes].concat()
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 1 << 7 {
        bytes.push(value as u8 | 1 << 7);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A record: length, its checksum, the event, its checksum.
fn encode_record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let [of_length, of_event] = [&length, event].map(|bytes| masked_checksum(bytes).to_le_bytes());
    [&length, &of_length[..], event, &of_event].concat()
}

/// A checksum of data that may hold checksums itself.
fn masked_checksum(bytes: &[u8]) -> u32 {
    CHECKSUM.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same three events by TensorBoard's own writer (2.21, `RecordWriter` of `Event.SerializeToString()`).
    const OF_TENSORBOARD: &str = "1800000000000000a37f4b220900002040fc54d9411a0d627261696e2e4576656e743a322b35\
                                  3110100000000000000095fbfe180900002040fc54d94110ac023a020801b94512a32d000000\
                                  000000003c418afb0900005040fc54d94110ac022a1f0a0b0a046c6f737315000020400a100a\
                                  096576616c2f746f703115000000006b893db0";

    #[test]
    fn records_are_those_of_tensorboard() {
        let (begin, later) = (1_700_000_000.5, 1_700_000_001.25);
        let numbers = [encode_value("loss", 2.5), encode_value("eval/top1", 0.0)].concat();
        let events = [
            encode_event(begin, 0, &text_field(3, VERSION)),
            encode_event(begin, 300, &bytes_field(7, &int_field(1, 1))),
            encode_event(later, 300, &bytes_field(5, &numbers)),
        ];
        let bytes: Vec<u8> = events.iter().flat_map(|event| encode_record(event)).collect();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, OF_TENSORBOARD);
    }

    #[test]
    fn each_training_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let into = folder.path().join("runs/first");
        let mut first = EventWriter::create(&into, 0).expect("it is writable");
        let second = EventWriter::create(&into, 7).expect("it is writable");
        assert_ne!(first.path, second.path);
        let before = std::fs::metadata(&first.path).expect("it is there").len();
        first.write(0, &[("loss".into(), 2.5)]).expect("it is writable");
        assert_eq!(std::fs::metadata(&first.path).expect("it is there").len(), before + 16 + 24);
    }
}
