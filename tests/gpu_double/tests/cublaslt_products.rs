//! Products by the functions of C, beside plain loops in f64.

mod matmul;
mod programs;

use half::{bf16, f16};
use matmul::Described;
use programs::{alone, download, room, stream, synchronize, upload, use_device};

#[test]
fn all_transposes_orders_and_types_are_the_sum_of_products() {
    use_device(0);
    for case in 0..48 {
        let flag = |bit: i32| case >> bit & 1 == 1;
        let mut product = Described::new(5, 7, 300, [0, 2, 14][case as usize % 3]);
        product.transpose = [flag(0), flag(1)];
        product.rows_first = [flag(2), flag(3), flag(1), flag(1)];
        product.gap = case as usize % 4;
        product.check(1.5, -0.5);
    }
}

#[test]
fn a_batch_goes_by_strides_and_a_factor_may_be_shared() {
    use_device(0);
    let mut product = Described::new(8, 3, 16, 0);
    product.batch = 3;
    product.check(1.0, 0.0);
    product.shared_b = true;
    product.check(0.5, 2.0);
}

#[test]
fn halves_may_give_f32() {
    use_device(0);
    for element in [2, 14] {
        let mut product = Described::new(9, 4, 33, element);
        product.result = 0;
        product.check(1.0, 1.0);
    }
}

#[test]
fn epilogues_add_biases_and_apply_functions() {
    use_device(0);
    for epilogue in [2, 4, 6, 32, 36] {
        for element in [0, 14] {
            let mut product = Described::new(16, 6, 8, element);
            product.epilogue = epilogue;
            product.check(1.0, 0.5);
        }
    }
}

#[test]
fn forward_epilogues_keep_what_gradients_read() {
    use_device(0);
    for (forward, backward) in [(130, 136), (134, 152), (160, 192), (164, 208)] {
        let mut product = Described::new(24, 5, 8, 0);
        product.batch = 2;
        product.epilogue = forward;
        let aux = product.check(1.0, 0.0);
        product.epilogue = backward;
        product.aux = aux;
        product.check(1.0, 0.0);
    }
}

#[test]
fn gradients_of_biases_are_sums_of_a_factor() {
    use_device(0);
    for epilogue in [256, 512] {
        let mut product = Described::new(6, 10, 12, 0);
        product.transpose = [true, false];
        product.epilogue = epilogue;
        product.check(2.0, 0.0);
    }
}

#[test]
fn alpha_and_beta_may_be_on_the_device() {
    use_device(0);
    let mut product = Described::new(4, 4, 4, 0);
    product.scalars_on_device = true;
    product.check(3.0, -1.0);
}

#[test]
fn tf32_is_only_where_it_is_asked_for() {
    use_device(0);
    let mut product = Described::new(8, 8, 8, 0);
    let exact = product.run(1.0, 0.0).result;
    product.compute = 77;
    let rounded = product.run(1.0, 0.0).result;
    assert_ne!(exact, rounded);
    let close = exact.iter().zip(&rounded).all(|(a, b)| (a - b).abs() < 8.0 * 2f64.powi(-10));
    assert!(close, "{exact:?} {rounded:?}");
}

#[test]
fn a_captured_product_is_replayed_on_what_is_there_then() {
    use_device(0);
    let product = Described::new(4, 4, 4, 0);
    let prepared = product.prepare(1.0, 0.0);
    let stream = stream();
    let graph = programs::capture(stream, || assert_eq!(prepared.launch(stream), 0));
    programs::launch(graph, stream);
    assert_eq!(synchronize(stream), 0);
    let before: Vec<f32> = download(prepared.operands[3], 16);
    programs::write(prepared.operands[0], &[0f32; 16]);
    programs::launch(graph, stream);
    assert_eq!(synchronize(stream), 0);
    assert_ne!(before, [0.0; 16]);
    assert_eq!(download::<f32>(prepared.operands[3], 16), [0.0; 16]);
}

#[test]
fn c_is_not_read_where_beta_is_zero() {
    use_device(0);
    let product = Described::new(4, 4, 4, 0);
    let mut prepared = product.prepare(1.0, 0.0);
    prepared.operands[2] = room(64);
    let stream = stream();
    assert_eq!(prepared.launch(stream), 0);
    assert_eq!(synchronize(stream), 0);
}

#[test]
fn an_unwritten_operand_is_told() {
    let error = alone("an_unwritten_operand_is_told", || {
        use_device(0);
        let mut prepared = Described::new(4, 4, 4, 0).prepare(1.0, 0.0);
        prepared.operands[1] = room(64);
        let stream = stream();
        assert_eq!(prepared.launch(stream), 0);
        assert_ne!(synchronize(stream), 0);
    });
    if let Some(error) = error {
        assert!(error.contains("cublasLtMatmul of 1 x (4x4 by 4x4): B, matrix 0"), "{error}");
    }
}

#[test]
fn an_operand_beyond_its_allocation_is_told() {
    let error = alone("an_operand_beyond_its_allocation_is_told", || {
        use_device(0);
        let mut prepared = Described::new(4, 4, 4, 0).prepare(1.0, 0.0);
        prepared.operands[3] = upload(&[0f32; 15]);
        let stream = stream();
        assert_eq!(prepared.launch(stream), 0);
        assert_ne!(synchronize(stream), 0);
    });
    if let Some(error) = error {
        assert!(error.contains("D, matrix 0"), "{error}");
    }
}

#[test]
fn the_workspace_is_written() {
    use_device(0);
    let product = Described::new(16, 16, 4, 0);
    let prepared = product.prepare(1.0, 0.0);
    let zeros = upload(&[0u8; 4096]);
    let chosen = prepared.choose(4096).expect("an algorithm");
    assert_eq!(chosen.workspace, 1024);
    let stream = stream();
    assert_eq!(prepared.launch_by(&chosen.algorithm, zeros, 4096, stream), 0);
    assert_eq!(synchronize(stream), 0);
    let workspace: Vec<u8> = download(zeros, 4096);
    assert!(workspace[..1024].iter().all(|byte| *byte == 0xff) && workspace[2000] == 0);
}

#[test]
fn halves_are_rounded_to_nearest_even() {
    use_device(0);
    let mut product = Described::new(1, 1, 1, 14);
    product.values = Some([1.0 + 1.0 / 128.0, 1.0 + 1.0 / 128.0]);
    let result = product.run(1.0, 0.0).result[0];
    let exact = (1.0f32 + 1.0 / 128.0) * (1.0 + 1.0 / 128.0);
    assert_eq!(result, bf16::from_f32(exact).to_f64());
    product.element = 2;
    product.result = 2;
    assert_eq!(product.run(1.0, 0.0).result[0], f16::from_f32(exact).to_f64());
}
