//! One body compiled for several instruction sets, the best one chosen when it is called.

use std::sync::LazyLock;

/// The widest vector instructions that the processor has.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other processors have neither"))]
pub(crate) enum SimdLevel {
    Avx512,
    Avx2,
    Plain,
}

/// The best level of this processor.
#[inline]
pub(crate) fn simd_level() -> SimdLevel {
    // The standard library keeps each feature; all of them together would be asked for at every call.
    static LEVEL: LazyLock<SimdLevel> = LazyLock::new(detect_level);
    *LEVEL
}

fn detect_level() -> SimdLevel {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            return SimdLevel::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return SimdLevel::Avx2;
        }
    }
    SimdLevel::Plain
}

/// Defines a function whose body is compiled for AVX-512, AVX2 and the baseline. All that the body calls must be
/// `#[inline(always)]` or it stays at the baseline. (A function cannot do this: closures cannot be forced inline.)
macro_rules! vectorized {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($generic:ident: $bound:path),*>)?
     ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$($generic: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body $(<$($generic: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512 $(<$($generic: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2 $(<$($generic: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            match crate::simd::simd_level() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the processor has the features, as `simd_level` has just found.
                crate::simd::SimdLevel::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                crate::simd::SimdLevel::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}

pub(crate) use vectorized;
