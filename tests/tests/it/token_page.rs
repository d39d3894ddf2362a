//! `docs/token.md` shows what the example `token` prints.

#[expect(dead_code, reason = "the program's `main` prints what the page shows")]
#[path = "../../../host/examples/token.rs"]
mod token;

#[test]
fn the_page_of_one_token_shows_what_its_program_prints() {
    let page = include_str!("../../../docs/token.md");
    let shown: Vec<_> =
        page.split("```text\n").skip(1).filter_map(|part| part.split("\n```").next()).collect();
    assert_eq!(token::story().expect("valid steps"), shown);
}
