//! The making of communicators: names, configurations, and the way of a rank to its hub.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::hub::{self, patience};
use super::member::Member;
use super::types::{Code, Refusal, refuse};
use super::wire::{ToHub, ToMember, connect, listen, receive, send};

/// `ncclUniqueId`: text, then zeros.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

const PREFIX: &[u8] = b"gpu-double:";

impl UniqueId {
    /// An id that no other process has.
    pub fn fresh() -> UniqueId {
        let mut id = UniqueId([0; 128]);
        let text = [PREFIX, fresh_name().as_bytes()].concat();
        id.0[..text.len()].copy_from_slice(&text);
        id
    }

    /// The name of the hub that it stands for.
    pub fn name(&self) -> Result<String, Refusal> {
        let text = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = text.strip_prefix(PREFIX).and_then(|name| std::str::from_utf8(name).ok());
        let known = name.filter(|name| !name.is_empty()).map(String::from);
        known.map_or_else(|| refuse(Code::InvalidArgument, "no id of ncclGetUniqueId"), Ok)
    }
}

/// A name that no other hub of this machine has.
pub fn fresh_name() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let random = || {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u128(now.as_nanos());
        hasher.write_u32(std::process::id());
        hasher.finish()
    };
    format!("{:016x}{:016x}", random(), random())
}

/// The head of an `ncclConfig_t`; later fields say how to be fast.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
}

/// `NCCL_CONFIG_UNDEF_INT`, and the mark of a configuration that was initialized.
const UNSET: i32 = i32::MIN;
const MAGIC: u32 = 0xcafe_beef;

/// Whether a configuration's communicator blocks; without a configuration, or where it does not say, `default`.
pub fn blocking(config: Option<&Config>, default: bool) -> Result<bool, Refusal> {
    let Some(config) = config else { return Ok(default) };
    if config.magic != MAGIC || config.size < size_of::<Config>() {
        return refuse(Code::InvalidArgument, "a configuration that was not initialized");
    }
    match config.blocking {
        UNSET => Ok(default),
        0 => Ok(false),
        1 => Ok(true),
        other => refuse(Code::InvalidArgument, format!("blocking is {other}, not 0 or 1")),
    }
}

/// Brings a rank to its communicator and waits until all ranks are there. Rank 0 begins the hub.
pub fn join(member: &Arc<Member>) -> Result<(), Refusal> {
    let result = try_join(member);
    if let Err(refusal) = &result {
        member.fail_to_join(refusal);
        eprintln!("gpu double: nccl: rank {}: {}", member.rank, refusal.reason);
    }
    result
}

fn try_join(member: &Arc<Member>) -> Result<(), Refusal> {
    if member.rank == 0 {
        begin_hub(member)?;
    }
    let mut link = reach(&member.name)?;
    let card = card(member.device);
    let hello = ToHub::Hello { rank: member.rank, ranks: member.ranks, card };
    send(&mut link, &hello, &[]).map_err(|error| system(format!("the hub: {error}")))?;
    // Patience is the hub's: it hears of all ranks.
    match receive::<ToMember>(&mut link) {
        Ok((ToMember::Welcome, _)) => {
            member.welcome(link).map_err(|error| system(format!("a thread: {error}")))
        }
        Ok((ToMember::Refused { usage: true, reason }, _)) => refuse(Code::InvalidUsage, reason),
        Ok((ToMember::Refused { usage: false, reason }, _)) => refuse(Code::SystemError, reason),
        Ok(_) => refuse(Code::InternalError, "the hub says something else than a welcome"),
        Err(error) => refuse(Code::SystemError, format!("rank 0 is gone: {error}")),
    }
}

fn begin_hub(member: &Member) -> Result<(), Refusal> {
    let listener = listen(&member.name).map_err(|error| Refusal {
        code: Code::InvalidUsage,
        reason: format!("this id is in use already, or two ranks are rank 0: {error}"),
    })?;
    hub::start(listener, &member.name, member.ranks)
        .map_err(|error| system(format!("a thread: {error}")))
}

/// Waits for the hub, which begins with rank 0.
fn reach(name: &str) -> Result<UnixStream, Refusal> {
    let begun = Instant::now();
    loop {
        match connect(name) {
            Ok(link) => return Ok(link),
            Err(error) if begun.elapsed() > patience() => {
                return Err(system(format!(
                    "rank 0 of communicator {name} does not come: {error}"
                )));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn system(reason: String) -> Refusal {
    Refusal { code: Code::SystemError, reason }
}

/// A device's name among all processes of the machine; `NCCL_HOSTID` stands for the machine where it is set.
fn card(device: i32) -> String {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let ordinal = visible.split(',').nth(device as usize).map(str::trim);
    let ordinal = ordinal.filter(|name| !name.is_empty()).map_or(device.to_string(), String::from);
    let host = std::env::var("NCCL_HOSTID").unwrap_or_else(|_| "this machine".into());
    format!("device {ordinal} of {host}")
}
