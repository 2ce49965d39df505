package upstream

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"regent/adapters"
)

// Over HTTP/2 the standard library sends a POST again and again when the other side resets it.
func TestTheClientSpeaksHTTP1Alone(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200 + r.ProtoMajor)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	client := New(Config{AllowPrivate: true})
	defer client.CloseIdleConnections()
	client.Transport.(*http.Transport).TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig
	response, err := client.Post(server.URL, "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != 201 {
		t.Errorf("the server was spoken to in HTTP/%d", response.StatusCode-200)
	}
}

// A provider that takes no bytes must not hold a call for longer than one that sends none.
func TestAWriteHasToBeTakenInTime(t *testing.T) {
	here, there := net.Pipe()
	defer func() { _ = here.Close(); _ = there.Close() }()
	_, err := (&patience{here, 10 * time.Millisecond}).Write([]byte("x"))
	if failure := Failure(err, false); failure.Reason != adapters.Timeout {
		t.Errorf("got %v", failure)
	}
}

func TestIPv4AddressesBehindLocalTranslation(t *testing.T) {
	for _, address := range []string{"[64:ff9b:1:a9fe:a9:fe00::]:80", "[64:ff9b:1:a9:fe:a9fe::]:80", "[64:ff9b:1:0:a9:fea9:fe00:0]:80", "[64:ff9b:1::a9fe:a9fe]:80"} {
		if err := check(address, true); err == nil {
			t.Errorf("%s is a metadata service", address)
		}
	}
}
