//! Copies of memory that is larger than the caches. What is written past the caches need not be read into them first, which
//! is a third of the traffic of an ordinary copy.
//!
//! The `unsafe` of this file: vector stores, to addresses that a slice borrowed for writing has.

use std::sync::{Mutex, PoisonError};

use graphc_host::threads::side_by_side;

/// The bytes from which on copies go past the caches: beyond it an ordinary copy evicts more than it keeps. Measured by
/// `bench_collectives --ops all_gather,send_recv --sizes 4194304,16777216,67108864`.
pub(crate) const STREAMED: usize = 8 << 20;

/// Copies a part of `whole` bytes.
pub(crate) fn copy_part(into: &mut [u8], from: &[u8], whole: usize) {
    match whole < STREAMED {
        true => into.copy_from_slice(from),
        false => stream_bytes(into, from),
    }
}

/// Copies bytes that a device and not the processor reads next: many of them in parts, by as many threads as the process may
/// use.
pub(crate) fn copy_in_parts(into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "a copy has the size of what is copied");
    if into.len() <= STREAMED {
        return copy_part(into, from, into.len());
    }
    let parts = into.chunks_mut(STREAMED).zip(from.chunks(STREAMED));
    let parts: Vec<Mutex<(&mut [u8], &[u8])>> = parts.map(Mutex::new).collect();
    side_by_side(parts.len(), |at| {
        let mut part = parts[at].lock().unwrap_or_else(PoisonError::into_inner);
        let (into, from) = &mut *part;
        copy_part(into, from, STREAMED);
    });
}

#[cfg(target_arch = "x86_64")]
fn stream_bytes(into: &mut [u8], from: &[u8]) {
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has these instructions, as just found.
        unsafe { stream_512(into, from) }
    } else if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: as above.
        unsafe { stream_256(into, from) }
    } else {
        into.copy_from_slice(from);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream_bytes(into: &mut [u8], from: &[u8]) {
    into.copy_from_slice(from);
}

/// Cuts both at the first address of `into` that is a cache line's, and at its last; copies what is not whole lines.
#[cfg(target_arch = "x86_64")]
fn split_cache_lines<'a>(
    into: &'a mut [u8],
    from: &'a [u8],
) -> (&'a mut [[u8; 64]], &'a [[u8; 64]]) {
    assert_eq!(into.len(), from.len(), "a copy has the size of what is copied");
    let before = into.as_ptr().align_offset(64).min(into.len());
    let (first, into) = into.split_at_mut(before);
    let (first_from, from) = from.split_at(before);
    first.copy_from_slice(first_from);
    let (into, last) = into.as_chunks_mut::<64>();
    let (from, last_from) = from.as_chunks::<64>();
    last.copy_from_slice(last_from);
    (into, from)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn stream_512(into: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{_mm_sfence, _mm512_loadu_si512, _mm512_stream_si512};
    let (into, from) = split_cache_lines(into, from);
    for (into, from) in into.iter_mut().zip(from) {
        // SAFETY: 64 bytes each, and `into` is aligned to as many.
        unsafe {
            let line = _mm512_loadu_si512(from.as_ptr().cast());
            _mm512_stream_si512(into.as_mut_ptr().cast(), line);
        }
    }
    // Before whoever is told of the copy looks at it.
    _mm_sfence();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
fn stream_256(into: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    let (into, from) = split_cache_lines(into, from);
    for (into, from) in into.iter_mut().zip(from) {
        // SAFETY: halves of 32 bytes of 64, and `into` is aligned to 64.
        unsafe {
            let (source, target) = (from.as_ptr().cast(), into.as_mut_ptr().cast());
            let halves = (_mm256_loadu_si256(source), _mm256_loadu_si256(source.add(1)));
            _mm256_stream_si256(target, halves.0);
            _mm256_stream_si256(target.add(1), halves.1);
        }
    }
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    type Way = fn(&mut [u8], &[u8]);

    #[test]
    fn every_byte_is_copied_whatever_the_alignment() {
        let from: Vec<u8> = (0..1000_u32).map(|i| (i * 7 % 251) as u8).collect();
        let ways: [Way; 2] = [stream_bytes, stream_narrow];
        for way in ways {
            for start in [0, 1, 31, 63] {
                for bytes in [0, 1, 63, 64, 65, 500, 900] {
                    let mut into = vec![0; 1000];
                    way(&mut into[start..start + bytes], &from[5..5 + bytes]);
                    assert_eq!(into[start..start + bytes], from[5..5 + bytes]);
                    let rest = into[..start].iter().chain(&into[start + bytes..]);
                    assert!(rest.into_iter().all(|&byte| byte == 0), "{start} {bytes}");
                }
            }
        }
    }

    #[test]
    fn a_large_copy_is_made_in_parts() {
        let from: Vec<u8> = (0..2 * STREAMED + 77).map(|i| (i * 7 % 251) as u8).collect();
        for bytes in [0, 100, STREAMED, from.len()] {
            let mut into = vec![0; bytes];
            copy_in_parts(&mut into, &from[..bytes]);
            assert!(into == from[..bytes], "{bytes}");
        }
    }

    /// By the narrower instructions, where there are such.
    fn stream_narrow(into: &mut [u8], from: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the processor has these instructions, as just found.
            return unsafe { stream_256(into, from) };
        }
        stream_bytes(into, from);
    }
}
