"""Estimators for scikit-learn: one private, personal model for each group of rows.

    from pmtl.sklearn import PMTLClassifier

    model = PMTLClassifier(epsilon=2.0).fit(X, y, groups=hospital)
    model.predict(X_new, groups=hospital_new)

`pmtl` itself does not import scikit-learn; this package does.
"""

from pmtl.errors import PmtlError, require_package

with require_package("The estimators need scikit-learn: pip install 'pmtl[sklearn]'."):
    import sklearn
if tuple(int(part) for part in sklearn.__version__.split(".")[:2]) < (1, 6):
    raise PmtlError(
        f"The estimators need scikit-learn 1.6 or newer, and {sklearn.__version__} is installed: "
        "pip install -U 'pmtl[sklearn]'."
    )

from pmtl.sklearn.classifier import PMTLClassifier
from pmtl.sklearn.regressor import PMTLRegressor
from pmtl.sklearn.search import SearchCost, search_cost

__all__ = ["PMTLClassifier", "PMTLRegressor", "SearchCost", "search_cost"]
