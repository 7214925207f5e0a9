"""Accept length over the 60 prompts lands on the table: within 5 % or two standard errors."""

from scripts.gpu.checks import Context, Engines, Verdict

NEEDS = ("tree-many", "wide-many")
# all 60 prompts, tokens over steps ± standard error; ddviz/models/smollm2-135m-dflash/README.md
TABLE = {
    ("tree-many", 0.0): (3.35, 0.12),
    ("tree-many", 0.6): (2.79, 0.08),
    ("tree-many", 1.0): (1.82, 0.05),
    ("wide-many", 0.0): (3.93, 0.13),
    ("wide-many", 0.6): (3.29, 0.09),
    ("wide-many", 1.0): (2.21, 0.06),
}
NAMES = {"tree-many": "16-4", "wide-many": "64-0"}


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    for (name, temperature), (wanted, error) in TABLE.items():
        answers = engines[name].generate(context.prompts, {"temperature": temperature, "max_new_tokens": 192})
        tokens = [len(a.output_ids) - 1 for a in answers]  # the first comes from prefill
        steps = [a.meta["spec_verify_ct"] for a in answers]
        figure = sum(tokens) / sum(steps)
        allowed = max(0.05 * wanted, 2 * error)
        verdict.figures.append(
            f"{NAMES[name]}, T = {temperature}: {figure:.3f}, table {wanted}, off {figure / wanted - 1:+.1%}"
        )
        verdict.claim(
            abs(figure - wanted) <= allowed,
            f"{NAMES[name]}, T = {temperature}: off by more than {allowed:.2f}",
        )
    return verdict
