//! Errors of eager calls. Calls that do not fit fail on all ranks. If ranks call different things, leave or die, the others are told, and nobody
//! waits for ever.

use crate::common::{Failure, on, sbp};
use graphc_eager::{Eager, GlobalTensor};
use graphc_ir::mesh::Placement;
use graphc_ir::types::DType;
use graphc_runtime::HostTensor;
use graphc_runtime::dist;

/// Returns the message of a call that fails on this rank.
fn said<T>(result: Result<T, impl ToString>) -> Result<String, Failure> {
    Ok(result.err().ok_or("it fits")?.to_string())
}

#[test]
fn what_does_not_fit_is_said_on_all_ranks_and_the_next_call_succeeds() {
    let all = on(3, |eager| {
        let pair = Placement::mesh(&[2])?;
        let x = eager.ones([4, 5], &pair, &sbp("S(0)"))?;
        let w = eager.ones([4, 5], &pair, &sbp("B"))?;
        let elsewhere = eager.ones([4, 5], &Placement::new(vec![2], vec![1])?, &sbp("B"))?;
        let halves = eager.of(DType::BF16).ones([4, 5], &pair, &sbp("B"))?;
        let texts = [
            said(x.matmul(&w))?,
            said(&x + &elsewhere)?,
            said(&x + &halves)?,
            said(x.sum(&[2], false))?,
            said(x.reshape(&[3, 7]))?,
            said(eager.zeros([2], &Placement::mesh(&[4])?, &sbp("B")))?,
            said(eager.zeros([2], &pair, &sbp("S(1)")))?,
            said(eager.zeros([2], &pair, &sbp("B, B")))?,
            said(eager.of(DType::I64).ones([2], &pair, &sbp("B"))? * 0.5)?,
            said(eager.of(DType::U8).full([2], 256.0, &pair, &sbp("B")))?,
            said(eager.of(DType::I32).randn([2], &pair, &sbp("B")))?,
            said(eager.zeros([1 << 40, 1 << 40], &pair, &sbp("S(0)")))?,
            said(x.to_global(&Placement::new(vec![7], vec![1])?, &sbp("B")))?,
        ];
        assert_eq!((&x + &w)?.to_host()?.to_f32()?, [2.0; 20]);
        Ok(texts)
    });
    assert!(all.iter().all(|texts| *texts == all[0]));
    let parts = [
        "matmul of f32[4, 5] S(0) on cpu [0, 1] as 2 and f32[4, 5] B on cpu [0, 1] as 2: matmul cannot take",
        "one operand is on cpu [0, 1] as 2, another on cpu [2] as 1",
        "add of f32[4, 5] S(0) on cpu [0, 1] as 2 and bf16[4, 5] B on cpu [0, 1] as 2",
        "sum [2] of f32[4, 5]",
        "reshape [3, 7] of f32[4, 5]",
        "names rank 2, but the group has ranks 0 to 2",
        "f32[2] cannot be S(1)",
        "(B, B) names 2 axes",
        "0.5 is no element of i64",
        "256 is no element of u8",
        "randn of i32",
        "is larger than any memory",
        "names rank 7",
    ];
    for (text, part) in all[0].iter().zip(parts) {
        let part = part.replace("names rank 2, but", "names rank 3, but");
        assert!(text.contains(&part), "`{part}` in\n{text}");
    }
}

#[test]
fn local_tensors_that_are_no_shards_are_named_on_all_ranks() {
    let all = on(3, |eager| {
        let all = eager.all();
        let rows = if eager.rank() == 1 { 3 } else { 2 };
        let local = HostTensor::zeros(DType::F32, [rows, 5]);
        let shapes = said(eager.from_local(&local, &all, &sbp("S(0)")))?;
        let dtype = if eager.rank() == 2 { DType::I32 } else { DType::F32 };
        let local = HostTensor::zeros(dtype, [2]);
        let types = said(eager.from_local(&local, &all, &sbp("B")))?;
        let dims: Vec<usize> = vec![2; 1 + eager.rank() as usize];
        let dims = said(eager.from_local(&HostTensor::zeros(DType::F32, dims), &all, &sbp("B")))?;
        Ok([shapes, types, dims])
    });
    assert!(all.iter().all(|texts| *texts == all[0]));
    let [shapes, types, dims] = &all[0];
    assert!(shapes.contains("rank 0 brings f32[2, 5], but f32[7, 5] in (S(0))"), "{shapes}");
    assert!(types.contains("rank 2 brings i32[2], but f32[2] in (B)"), "{types}");
    assert!(dims.contains("rank 1 brings f32[2, 2], but f32[2] in (B)"), "{dims}");
}

/// Returns the error of each of two ranks: that of `program`, in which they call different things, or of the call that follows it.
fn differ(
    program: impl Fn(&Eager, &GlobalTensor, &GlobalTensor) -> Result<(), Failure> + Sync,
) -> Vec<String> {
    let run = |group: dist::Group| -> Result<String, Failure> {
        let (eager, pair) = (Eager::new(&group)?, Placement::mesh(&[2])?);
        let x = eager.ones([4, 4], &pair, &sbp("S(0)"))?;
        let y = eager.ones([4, 4], &pair, &sbp("S(0)"))?;
        let result = program(&eager, &x, &y);
        let result = result.and_then(|()| Ok(x.to_host().map(drop)?));
        Ok(result.err().ok_or("a difference")?.to_string())
    };
    dist::spawn(2, run).expect("the ranks give what they heard")
}

#[test]
fn ranks_that_call_different_things_are_named_on_all() {
    // Neither operation would communicate.
    let texts = differ(|eager, x, y| match eager.rank() {
        0 => Ok((x + y).map(drop)?),
        _ => Ok((x * y).map(drop)?),
    });
    for text in &texts {
        assert!(text.contains("rank 0 calls add of f32[4, 4] S(0)"), "{text}");
        assert!(text.contains("rank 1 calls mul of f32[4, 4] S(0)"), "{text}");
    }
    // One rank's call communicates, the other's does not.
    let texts = differ(|eager, x, y| match eager.rank() {
        0 => Ok(x.sum(&[0], false).map(drop)?),
        _ => Ok((x - y).map(drop)?),
    });
    assert!(texts.iter().all(|t| t.contains("sum [0]") && t.contains("sub of")), "{texts:?}");
    // The same call with other numbers.
    let texts = differ(|eager, x, _| Ok((x * f64::from(eager.rank())).map(drop)?));
    assert!(texts.iter().all(|t| t.contains("with other numbers")), "{texts:?}");
    // One rank goes ahead.
    let texts = differ(|eager, x, y| match eager.rank() {
        0 => Ok(()),
        _ => Ok((x + y).map(drop)?),
    });
    assert!(texts.iter().all(|t| t.contains("add of") && t.contains("to_global B")), "{texts:?}");
}

#[test]
fn a_rank_outside_that_has_gone_its_own_way_is_found_when_it_takes_part() {
    let run = |group: dist::Group| -> Result<String, Failure> {
        let (eager, pair) = (Eager::new(&group)?, Placement::mesh(&[2])?);
        let x = eager.ones([4], &pair, &sbp("S(0)"))?;
        if eager.rank() != 2 {
            (&x + &x)?;
        }
        said(x.to_host())
    };
    let texts = dist::spawn(3, run).expect("the ranks give what they heard");
    assert!(texts.iter().all(|text| text.contains("global tensors")), "{texts:?}");
}

#[test]
fn a_rank_that_has_left_is_not_waited_for() {
    let run = |group: dist::Group| -> Result<String, Failure> {
        let (eager, pair) = (Eager::new(&group)?, Placement::mesh(&[2])?);
        let x = eager.ones([4], &pair, &sbp("S(0)"))?;
        match eager.rank() {
            0 => Ok(String::new()),
            _ => said(&x + &x),
        }
    };
    let texts = dist::spawn(2, run).expect("the ranks give what they heard");
    assert!(
        texts[1].contains("rank 0 has let go of its global tensors after 1 calls"),
        "{texts:?}"
    );
    assert!(texts[1].contains("rank 1 calls add"), "{texts:?}");
}

#[test]
fn a_rank_that_dies_ends_the_job() {
    let run = |group: dist::Group| -> Result<(), Failure> {
        let eager = Eager::new(&group)?;
        let mut x = eager.ones([4, 4], &eager.all(), &sbp("S(0)"))?;
        for turn in 0..100 {
            assert!((eager.rank(), turn) != (1, 50), "rank 1 dies");
            x = x.sum(&[0], true)?.to_global(&eager.all(), &sbp("S(1)"))?;
        }
        Ok(())
    };
    let text = dist::spawn(3, run).expect_err("rank 1 dies").to_string();
    assert!(text.contains("rank 1: panicked: rank 1 dies"), "{text}");
}

#[test]
fn the_error_of_a_rank_is_what_the_others_hear() {
    let heard = std::sync::Mutex::new(String::new());
    let run = |group: dist::Group| -> Result<(), Failure> {
        let eager = Eager::new(&group)?;
        let x = eager.ones([4, 4], &eager.all(), &sbp("S(0)"))?;
        if eager.rank() == 1 {
            return Err("the disk is full".into());
        }
        let text = said(x.to_host())?;
        *heard.lock().expect("nobody panics") = text;
        Ok(())
    };
    let text = dist::spawn(2, run).expect_err("rank 1 fails").to_string();
    assert!(text.contains("rank 1: the disk is full"), "{text}");
    let heard = heard.into_inner().expect("nobody panics");
    assert!(heard.contains("the disk is full"), "{heard}");
}

#[test]
fn an_integer_without_a_quotient_ends_the_program() {
    let run = |group: dist::Group| -> Result<(), Failure> {
        let eager = Eager::new(&group)?;
        let ints = eager.of(DType::I64).arange(3, &eager.all(), &sbp("S(0)"))?;
        Ok((&ints / 0.0).map(drop)?)
    };
    let text = dist::spawn(2, run).expect_err("nothing is divided by 0").to_string();
    assert!(text.contains("an integer is divided by 0"), "{text}");
}

#[test]
fn operands_of_two_contexts_do_not_meet() {
    let texts = on(1, |eager| {
        let text = dist::spawn(1, |group| -> Result<String, Failure> {
            let other = Eager::new(&group)?;
            let (x, y) = (
                eager.ones([2], &eager.all(), &sbp("B"))?,
                other.ones([2], &other.all(), &sbp("B"))?,
            );
            said(&x + &y)
        })?;
        Ok(text)
    });
    assert!(texts[0][0].contains("different `Eager` contexts"), "{texts:?}");
}
